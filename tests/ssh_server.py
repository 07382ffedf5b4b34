"""An sshd on this machine, for tests of shells."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

import pytest

_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


def require() -> None:
    """Installs openssh-server where it is not there yet; skips the test that asks when that cannot be."""
    why = _missing()
    if why is not None:
        pytest.skip(why)


@functools.cache
def _missing() -> str | None:
    if _is_here():
        return None
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "there is no sshd here, and no apt-get (as root) to install openssh-server"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ["openssh-server", "openssh-client"]
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-q", *command], env=env, capture_output=True, text=True)
        if done.returncode:
            return f"openssh-server cannot be installed: {done.stderr[-300:]}"
    return None if _is_here() else "apt-get installed openssh-server, but there is no sshd"


def _is_here() -> bool:
    return all(shutil.which(name, path=_PATH) for name in ("sshd", "ssh", "scp", "ssh-keygen"))
