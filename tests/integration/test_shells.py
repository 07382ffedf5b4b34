"""Shells: ssh, scp and forwarding for their owner, nothing for others; terminals without ssh."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import ssh_server
from tests.listening import listening
from tests.local_cluster import DET, LocalCluster
from tests.waiting import TIMEOUT_S, until

PASSWORD = "long-enough"


@pytest.fixture(scope="module")
def other(cluster: LocalCluster) -> dict[str, str]:
    """The variables of a user who is not an administrator."""
    passwords = json.loads((cluster.data_dir / "cluster.json").read_text())["passwords"]
    admin = {"DET_USER": "admin", "DET_PASS": passwords["admin"]}
    script = (
        "from determined.experimental import client; import sys;"
        f"client.create_user('shells-eve', admin=False, password={PASSWORD!r})"
    )
    subprocess.run([sys.executable, "-c", script], env={**cluster.env, **admin}, check=True)
    return {"DET_USER": "shells-eve", "DET_PASS": PASSWORD}


@pytest.fixture(scope="module")
def shell(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A shell of the user `determined` with the file a.txt; its id."""
    ssh_server.require()
    context = tmp_path_factory.mktemp("context")
    (context / "a.txt").write_text("of the context\n")
    # Would be imported by a program that looks where it starts.
    (context / "asyncio.py").write_text("raise SystemExit('not this one')\n")
    given = ["--config", "resources.slots=0", "--config", "idle_timeout=1h", "-c", str(context)]
    shell_id = cluster.det("shell", "start", "-d", *given).stdout.strip()
    yield shell_id
    cluster.det("shell", "kill", shell_id)


def run(
    cluster: LocalCluster, *words: str, code: int = 0, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        words,
        env={**cluster.env, **env},
        capture_output=True,
        text=True,
        input=stdin,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


def echo_server() -> int:
    """The port of a server that returns the input of each connection in capitals."""
    listener = listening()

    def serve() -> None:
        while True:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(sock.recv(100).upper())

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def free_port() -> int:
    with listening() as found:
        return int(found.getsockname()[1])


def test_ssh_scp_and_forwarding(cluster: LocalCluster, shell: str, tmp_path: Path) -> None:
    program = "cat a.txt; echo $DET_TASK_ID; python3 -c 'import determined'; exit 7"
    done = run(cluster, *DET, "shell", "open", shell, "--", program, code=7)
    assert done.stdout == f"of the context\n{shell}\n"
    assert f"det shell open {shell} comes back" in done.stderr

    cluster.det("shell", "config-ssh")
    config = Path(cluster.env["HOME"]) / ".ssh/config"
    before = config.read_text()
    cluster.det("shell", "config-ssh")
    assert config.read_text() == before
    given = ["-F", str(config), "-o", "BatchMode=yes"]
    (tmp_path / "sent").write_bytes(sent := os.urandom(300_000))
    host = f"det-{shell[:8]}"
    run(cluster, "scp", *given, str(tmp_path / "sent"), f"{host}:sent")
    run(cluster, "scp", *given, f"{host}:sent", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == sent

    # Another host key at the end of the same way is noticed.
    known = next((Path(cluster.env["DET_DEBUG_CONFIG_PATH"]) / "shells").glob("*/known_hosts"))
    right = known.read_text()
    forged = right.split()[0], right.split()[1], right.split()[2][:-6] + "AAAAAA"
    known.write_text(" ".join(forged) + "\n")
    run(cluster, "ssh", *given, host, "true", code=255)
    known.write_text(right)

    here, there = free_port(), echo_server()
    options = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{here}:127.0.0.1:{there}"]
    forwarding = subprocess.Popen(
        [*DET, "shell", "open", shell, "--", *options], env=cluster.env, stderr=subprocess.PIPE
    )

    def answer() -> bytes | None:
        try:
            with socket.create_connection(("127.0.0.1", here)) as sock:
                sock.sendall(b"through the tunnel")
                return sock.recv(100)
        except OSError:
            assert forwarding.poll() is None
            return None

    assert until("the forwarded port", answer) == b"THROUGH THE TUNNEL"
    ssh = psutil.Process(forwarding.pid).children()
    forwarding.terminate()
    forwarding.communicate()
    # Processes that det started end with it.
    psutil.wait_procs(ssh, timeout=TIMEOUT_S)

    cluster.det("shell", "config-ssh", "--remove")
    assert "determined" not in config.read_text()


def test_the_owner_alone_gets_in(
    cluster: LocalCluster, shell: str, other: dict[str, str], tmp_path: Path
) -> None:
    refused = run(cluster, *DET, "shell", "open", shell, "--", "id", code=1, **other)
    assert f"shell {shell} is determined's: only its owner gets the key" in refused.stderr
    assert (
        "privateKey" not in run(cluster, *DET, "shell", "list", "--all", "--json", **other).stdout
    )
    command = cluster.det("shell", "show-ssh-command", shell).stdout
    # With the owner's key in hand, the way is still closed.
    stolen = run(cluster, *shlex.split(command), "id", code=255, **other)
    assert "may not" in stolen.stderr or "visit" in stolen.stderr, stolen.stderr

    # The owner's key opens no other shell, even for users who may visit it.
    given = ["--config", "resources.slots=0", "-d"]
    second = run(cluster, *DET, "shell", "start", *given, **other).stdout.strip()
    theirs = run(cluster, *DET, "shell", "show-ssh-command", second, **other).stdout
    key = next(word for word in shlex.split(command) if word.startswith("IdentityFile="))
    swapped = [key if one.startswith("IdentityFile=") else one for one in shlex.split(theirs)]
    denied = run(cluster, *swapped, "-o", "BatchMode=yes", "id", code=255, **other)
    assert "Permission denied (publickey)" in denied.stderr
    run(cluster, *DET, "shell", "kill", second, **other)
    log = cluster.det("shell", "logs", shell).stdout
    assert "Accepted publickey" in log and "PRIVATE" not in log


def test_a_terminal_without_ssh_and_the_service_killed(cluster: LocalCluster, shell: str) -> None:
    words = [*DET, "shell", "open", "--no-ssh", shell]
    typed = "cat a.txt; echo $TERM-$((20+2)); exit 5\n"
    done = run(cluster, *words, code=5, stdin=typed, TERM="vt100")
    assert "of the context" in done.stdout and "vt100-22" in done.stdout
    # Without input, as in a cron job, it ends.
    run(cluster, *words, stdin="")

    with subprocess.Popen(words, env=cluster.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL) as opened:  # fmt: skip
        assert opened.stdin is not None and opened.stdout is not None
        opened.stdin.write(b"echo begun-$((1+1))\n")
        opened.stdin.flush()
        until("the terminal", lambda: b"begun-2" in opened.stdout.readline())  # type: ignore[union-attr]
        (service,) = [
            row
            for row in cluster.json("deploy", "local", "status")
            if row["component"] == "service"
        ]
        psutil.Process(service["pid"]).kill()
        assert opened.wait(TIMEOUT_S) == 255
    cluster.up()
    again = run(cluster, *DET, "shell", "open", shell, "--", "echo still $DET_TASK_ID")
    assert again.stdout == f"still {shell}\n"
