"""A program of a task on this terminal, without ssh: what a shell and `det exec` have in common."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from determined.cli.errors import CliError, talk
from determined.common.wire import shells
from determined.common.wire.shells import Frame, Frames

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.common.tunnel import Tunnel

ALIVE_SECONDS = 30.0
"""So often something is sent, so that no proxy on the way takes silence for an end."""
LOST = 255
"""The exit code of ssh, too, when the connection is gone."""
_ESCAPE = b"~."


def run(session: Session, shell_id: str, private_key: str) -> int:
    """Until its program has ended; the program's exit code. Raises CliError when it is refused."""
    from determined.common import tunnel

    opened = tunnel.connect(session.master, session.token, f"{shell_id}:{shells.TERMINAL}")
    return hold(opened, {"secret": shells.terminal_secret(private_key)})


def hold(opened: Tunnel, hello: dict[str, Any], *, tty: bool = True, typed: bool = True) -> int:
    """Says ``hello``, and passes on what both sides say until the program has ended; its exit code.

    ``tty``: the program has a terminal, so this one gives it each key. ``typed``: standard input is the
    program's. Raises CliError when it is refused.
    """
    hello = {**hello, "term": os.environ.get("TERM", ""), **_size()}
    try:
        opened.send(shells.frame(Frame.HELLO, json.dumps(hello).encode()))
        if not tty:
            if not typed:
                opened.send(shells.frame(Frame.END))
            with opened:
                return _converse(opened, (_type, _ping) if typed else (_ping,))
        with opened, _raw(), _heeding_size(opened):
            return _converse(opened, (_type, _stay_alive))
    except OSError:
        return LOST


Work = Callable[["Tunnel", threading.Event], None]


def _converse(opened: Tunnel, works: tuple[Work, ...]) -> int:
    frames = Frames()
    over = threading.Event()
    for work in works:
        threading.Thread(target=work, args=(opened, over), daemon=True).start()
    try:
        while data := opened.receive():
            for kind, content in frames.feed(data):
                if kind == Frame.OUTPUT:
                    _print(sys.stdout, content)
                elif kind == Frame.ERRORS:
                    _print(sys.stderr, content)
                elif kind == Frame.EXIT:
                    return int(json.loads(content)["code"])
                elif kind == Frame.REFUSED:
                    raise CliError(content.decode(errors="replace"))
    except (ValueError, KeyError):
        pass
    finally:
        over.set()
    return LOST


def _type(opened: Tunnel, over: threading.Event) -> None:
    """The bytes typed here, until Enter, ~ and a dot, as in ssh."""
    typed = b"\n"
    is_terminal = sys.stdin.isatty()
    with contextlib.suppress(OSError, ValueError):
        while not over.is_set():
            data = os.read(sys.stdin.fileno(), shells.FRAME_BYTES)
            if not data:
                opened.send(shells.frame(Frame.END))
                return
            if is_terminal:
                typed = (typed + data)[-3:]
                if typed[-2:] == _ESCAPE and typed[:1] in (b"\r", b"\n"):
                    opened.close()
                    return
            opened.send(shells.frame(Frame.INPUT, data))


def _stay_alive(opened: Tunnel, over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while not over.wait(ALIVE_SECONDS):
            _resize(opened)


def _resize(opened: Tunnel) -> None:
    opened.send(shells.frame(Frame.RESIZE, json.dumps(_size()).encode()))


def _size() -> dict[str, Any]:
    found = shutil.get_terminal_size()
    return {"rows": found.lines, "columns": found.columns}


def _ping(opened: Tunnel, over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while not over.wait(ALIVE_SECONDS):
            # No input, which a program does not notice.
            opened.send(shells.frame(Frame.INPUT))


def _print(stream: TextIO, data: bytes) -> None:
    stream.buffer.write(data)
    stream.buffer.flush()


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Each key as it is pressed, Ctrl-C too, is the shell's."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _heeding_size(opened: Tunnel) -> Iterator[None]:
    if not hasattr(signal, "SIGWINCH"):
        yield
        return

    def tell(*_: object) -> None:
        # A thread may be sending at this moment: the lock is not this handler's to wait for.
        threading.Thread(target=_told, args=(opened,), daemon=True).start()

    before = signal.signal(signal.SIGWINCH, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _told(opened: Tunnel) -> None:
    with contextlib.suppress(OSError):
        _resize(opened)


def lost(shell_id: str) -> None:
    """Says that the connection has ended."""
    talk(f"\nthe connection to shell {shell_id} has ended")
