"""The agreement between a shell's task, the service and `det`: ports, variables, the frames of a terminal.

A terminal is a stream of frames both ways: a kind (:class:`Frame`), four bytes with the length, the content.
The client begins with ``HELLO``, whose secret only the shell's owner can know.
"""

from __future__ import annotations

import enum
import hashlib
import re
from dataclasses import dataclass

from determined.common.wire.message import Message, checked

SSH = "ssh"
TERMINAL = "terminal"
"""The names of a shell's ports: /proxy/<task> is the first one, /proxy/<task>:terminal the second."""
SSH_PORT = "DET_SHELL_SSH_PORT"
TERMINAL_PORT = "DET_SHELL_TERMINAL_PORT"
PUBLIC_KEY = "DET_SHELL_PUBLIC_KEY"
SECRET_HASH = "DET_SHELL_SECRET_HASH"
"""Variables of the task's process."""

DOOR = "/api/v1/shells/{task_id}/door"
"""Where the task's process says that it can be entered: :class:`Door`."""

SSHD_PROGRAMS = ("sshd", "ssh-keygen")
"""Without these a shell has terminals alone."""
SSHD_FOLDERS = "/usr/sbin:/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin"
"""Where they are looked for besides the PATH."""

ACCOUNT_CHARS = 255
# An account name must not look like an option of ssh or a line of its configuration.
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*\$?")
_HOST_KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-[a-z0-9-]+) [A-Za-z0-9+/]{40,2000}={0,2}")
FRAME_BYTES = 64 << 10
"""The longest content of a frame."""


class Frame(enum.IntEnum):
    """Kinds of frame. Contents are bytes of the terminal, or JSON."""

    HELLO = 1  # {"secret", "term", "rows", "columns"}
    INPUT = 2
    RESIZE = 3  # {"rows", "columns"}
    END = 4  # there is no more input
    OUTPUT = 5
    EXIT = 6  # {"code"}: the last one
    REFUSED = 7  # words: the last one
    ERRORS = 8  # output to standard error, where it is not a terminal's


@checked
@dataclass(frozen=True, slots=True)
class Door(Message):
    """The ways to enter the task. ``account``: whose name ssh logs in with; ``host_key``: the public half of
    its sshd's; ``no_ssh``: why there is no sshd, in words, or empty; ``no_tty``: why its sessions have no
    terminal, in words, or empty."""

    account: str = ""
    host_key: str = ""
    no_ssh: str = ""
    no_tty: str = ""


def is_account(name: str) -> bool:
    """Whether it can be the name of an account, and nothing else in a command or a configuration of ssh."""
    return len(name) <= ACCOUNT_CHARS and bool(_ACCOUNT.fullmatch(name))


def is_host_key(text: str) -> bool:
    """Whether it is a public key as `known_hosts` has it, without a comment."""
    return bool(_HOST_KEY.fullmatch(text))


def terminal_secret(private_key: str) -> str:
    """The secret that opens a terminal: whoever has the shell's private key knows it."""
    return hashlib.sha256(b"determined terminal\0" + private_key.strip().encode()).hexdigest()


def hash_of(secret: str) -> str:
    """What the task knows of the secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def frame(kind: Frame, content: bytes = b"") -> bytes:
    """The bytes of one frame, or of several where the content is long."""
    pieces = [content[at : at + FRAME_BYTES] for at in range(0, len(content), FRAME_BYTES)] or [b""]
    return b"".join(bytes((kind,)) + len(one).to_bytes(4) + one for one in pieces)


class Frames:
    """Puts frames together from bytes as they come."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are whole now. Raises ValueError for one that is too long."""
        self._buffer += data
        found = []
        while len(self._buffer) >= 5:
            size = int.from_bytes(self._buffer[1:5])
            if size > FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            if len(self._buffer) < 5 + size:
                break
            found.append((self._buffer[0], bytes(self._buffer[5 : 5 + size])))
            del self._buffer[: 5 + size]
        return found
