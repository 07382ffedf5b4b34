"""An sshd on this machine, for tests of shells."""

from __future__ import annotations

import functools
import os
import shutil

import pytest

from tests import installed

_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


def require() -> None:
    """Installs openssh-server where it is not there yet; skips the test that asks when that cannot be."""
    why = _missing()
    if why is not None:
        pytest.skip(why)


@functools.cache
def _missing() -> str | None:
    return installed.from_debian("sshd", ["openssh-server", "openssh-client"], _is_here)


def _is_here() -> bool:
    return all(shutil.which(name, path=_PATH) for name in ("sshd", "ssh", "scp", "ssh-keygen"))
