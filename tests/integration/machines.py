"""Machines on this machine: network namespaces, joined by a bridge."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.waiting import TIMEOUT_S


@dataclass(frozen=True)
class Machine:
    """A namespace with a separate address."""

    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """``words``, to be run there."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def unplug(self) -> None:
        """Pulls the cable."""
        _ip("-n", self.namespace, "link", "set", "eth0", "down")

    def plug_in(self) -> None:
        """Puts it back."""
        _ip("-n", self.namespace, "link", "set", "eth0", "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=TIMEOUT_S)


def _let_through(stack: contextlib.ExitStack, bridge: str) -> None:
    """Where a Docker engine has run, packets over any bridge are dropped unless a rule allows them."""
    if shutil.which("iptables") is None:
        return
    rule = ["FORWARD", "-i", bridge, "-o", bridge, "-j", "ACCEPT"]
    done = subprocess.run(["iptables", "-w", "-I", *rule], capture_output=True, timeout=TIMEOUT_S)
    if done.returncode == 0:
        delete = ["iptables", "-w", "-D", *rule]
        stack.callback(subprocess.run, delete, capture_output=True, timeout=TIMEOUT_S)


@contextlib.contextmanager
def machines(count: int) -> Iterator[tuple[str, list[Machine]]]:
    """This machine's address, as the others see it, and ``count`` others. Skips the test where they
    cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("needs the program ip (package iproute2)")
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    tag = os.getpid() % 100_000
    bridge = f"detbr{tag}"
    net = f"198.18.{tag % 256}"  # set aside for benchmarks of networks
    made = [Machine(f"det-{tag}-{number}", f"{net}.{10 + number}") for number in range(count)]
    with contextlib.ExitStack() as stack:
        try:
            _ip("link", "add", bridge, "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"needs the right to make network devices: {error.stderr.decode().strip()}")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{net}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        _let_through(stack, bridge)
        for number, machine in enumerate(made):
            _ip("netns", "add", machine.namespace)
            stack.callback(_ip, "netns", "del", machine.namespace)
            link = f"detv{tag}{number}"
            there = ("peer", "name", "eth0", "netns", machine.namespace)
            _ip("link", "add", link, "type", "veth", *there)
            # Otherwise it is removed only with the namespace, which cut-off connections keep alive.
            stack.callback(_ip, "link", "del", link)
            _ip("link", "set", link, "master", bridge, "up")
            _ip("-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _ip("-n", machine.namespace, "link", "set", device, "up")
        yield f"{net}.1", made
