"""An sshd on this machine, for tests of shells."""

from __future__ import annotations

import functools

import pytest

from tests import installed


def require() -> None:
    """Install openssh-server if it is missing; skip the requesting test if that fails."""
    why = _missing()
    if why is not None:
        pytest.skip(why)


@functools.cache
def _missing() -> str | None:
    programs = ["sshd", "ssh", "scp", "ssh-keygen"]
    return installed.from_debian(programs, ["openssh-server", "openssh-client"])
