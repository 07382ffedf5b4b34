"""An sshd on this machine, for tests of shells."""

from __future__ import annotations

import functools

import pytest

from tests import installed


def require() -> None:
    """Installs openssh-server where it is not there yet; skips the test that asks when that cannot be."""
    why = _missing()
    if why is not None:
        pytest.skip(why)


@functools.cache
def _missing() -> str | None:
    programs = ["sshd", "ssh", "scp", "ssh-keygen"]
    return installed.from_debian(programs, ["openssh-server", "openssh-client"])
