"""The files by which ssh enters a shell (its key, the host's key, the way there), and the session."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from determined.cli.errors import CliError, talk
from determined.common.wire import shells

if TYPE_CHECKING:
    from determined.cli.state import State

CERTIFICATE = ("DET_MASTER_CERT_FILE", "DET_MASTER_CERT_NAME")
# Connects to the socket that is named, and hands it to ssh. Without site, which takes most of the start.
_HAND_OVER = (
    "import socket,sys;s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);"
    "socket.send_fds(socket.socket(fileno=1),[b'.'],[s.fileno()])"
)


def is_here() -> bool:
    """Whether this machine has ssh."""
    return shutil.which("ssh") is not None


@dataclass(frozen=True)
class Access:
    """A shell that can be entered by ssh. ``key``, ``known_hosts``: files that only this user reads."""

    shell_id: str
    account: str
    key: Path
    known_hosts: Path

    @property
    def alias(self) -> str:
        """The name under which its host key is known; each shell has a key of its own."""
        return f"det-{self.shell_id}"

    def options(self) -> list[tuple[str, str]]:
        """For ssh's command line and its configuration, all but the way there."""
        return [
            ("IdentityFile", _quoted(self.key)),
            ("IdentitiesOnly", "yes"),
            ("HostKeyAlias", self.alias),
            ("UserKnownHostsFile", _quoted(self.known_hosts)),
            ("GlobalKnownHostsFile", "/dev/null"),
            ("StrictHostKeyChecking", "yes"),
            ("ServerAliveInterval", "30"),
        ]

    def argv(self, proxy: str, *options: tuple[str, str]) -> list[str]:
        """The command, to which ssh's own options and a program may be added."""
        given = [("ProxyCommand", proxy), *options, *self.options()]
        words = [word for name, value in given for word in ("-o", f"{name}={value}")]
        return ["ssh", *words, "-l", self.account, self.shell_id]


def private_key(shell: Mapping[str, Any]) -> str:
    """Raises CliError where the service has not given it."""
    found = shell.get("privateKey")
    if not found:
        raise CliError(
            f"shell {shell['id']} is {shell['username']}'s: only its owner gets the key to it, logged in as"
            f" {shell['username']} (det -u {shell['username']} …); an administrator can kill it"
        )
    return str(found)


def prepare(shell: Mapping[str, Any]) -> Access:
    """Writes the files for a shell that is ready. Raises CliError when it is somebody else's."""
    key = private_key(shell)
    account = str((shell.get("agentUserGroup") or {}).get("agentUser") or "")
    host_key = str(shell.get("hostKey") or "")
    if not shells.is_account(account) or not shells.is_host_key(host_key):
        raise CliError(f"shell {shell['id']} does not say how to enter it by ssh: try --no-ssh")
    folder = folder_of(shell["id"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    access = Access(shell["id"], account, folder / "key", folder / "known_hosts")
    _write(access.key, key)
    _write(access.known_hosts, f"{access.alias} {host_key}\n")
    return access


def folder_of(shell_id: str) -> Path:
    """The paths of the files for a shell."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", shell_id):
        raise CliError(f"{shell_id!r} is no shell's ID")
    return _folder() / shell_id


def forget(shell_id: str) -> None:
    """Removes the files of a shell that has ended."""
    shutil.rmtree(folder_of(shell_id), ignore_errors=True)


def kept() -> list[str]:
    """The ids of the shells that have files here."""
    with contextlib.suppress(OSError):
        return [path.name for path in _folder().iterdir()]
    return []


def _folder() -> Path:
    from determined.common.api.token_store import config_dir

    return config_dir() / "shells"


def _write(path: Path, text: str) -> None:
    # A file of its own for each writer: ssh may be reading the last one.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w") as made:
        made.write(text)
    Path(name).replace(path)


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("%", "%%") + '"'


def proxy_command(shared: State) -> str:
    """The way to a shell for an ssh that `det` does not start: it logs in by itself."""
    words = [sys.executable, "-P", "-m", "determined.cli.tunnel"]
    if shared.user:
        words += ["-u", shared.user]
    words.append(shared.address.url)
    trusted = [f"{name}={os.environ[name]}" for name in CERTIFICATE if os.environ.get(name)]
    if trusted:
        words = ["env", *trusted, *words]
    return shlex.join(words).replace("%", "%%") + " %h"


def run(shared: State, access: Access, words: Sequence[str]) -> int:
    """A session of ssh on this terminal, to its end; the exit code of ssh."""
    with _way(shared, access.shell_id) as (proxy, options), _interrupts_are_for_ssh():
        argv = [*access.argv(proxy, *options), *words]
        return subprocess.run(argv, check=False).returncode


@contextlib.contextmanager
def _interrupts_are_for_ssh() -> Iterator[None]:
    # Not SIG_IGN, which ssh would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _way(shared: State, shell_id: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The ProxyCommand, and options that it needs. This process makes the tunnels: another one would log in
    again and import everything again, which takes longer than ssh's own work."""
    if not hasattr(socket, "send_fds"):
        yield proxy_command(shared), []
        return
    from determined.common import tunnel

    session = shared.session
    with tempfile.TemporaryDirectory(prefix="det-") as folder:
        path = str(Path(folder) / "way")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            opened = _opener(session.master, session.token, shell_id)
            serve = threading.Thread(target=_serve, args=(listener, opened, tunnel), daemon=True)
            serve.start()
            words = shlex.join([sys.executable, "-I", "-S", "-c", _HAND_OVER, path])
            yield words.replace("%", "%%"), [("ProxyUseFdpass", "yes")]


def _opener(url: str, token: str | None, key: str) -> Callable[[], Any]:
    from determined.common import tunnel

    return lambda: tunnel.connect(url, token, key)


def _serve(listener: socket.socket, opened: Callable[[], Any], tunnel: Any) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(sock, opened, tunnel), daemon=True).start()


def _join(sock: socket.socket, opened: Callable[[], Any], tunnel: Any) -> None:
    from determined.common.api import errors

    with sock:
        try:
            found = opened()
        except errors.APIException as error:
            talk(f"error: {error.message}")
            return

        def end() -> None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        tunnel.join(found, lambda: sock.recv(tunnel.PIECE), sock.sendall, end)


def block(access: Access, shell: Mapping[str, Any], proxy: str) -> str:
    """The lines of `~/.ssh/config` that give a shell a short name."""
    words = " ".join(re.sub(r"[^\x20-\x7e]", " ", str(shell.get("description") or "")).split())
    lines = [
        f"HostName {access.shell_id}",
        f"User {access.account}",
        f"ProxyCommand {proxy}",
        *(f"{name} {value}" for name, value in access.options()),
    ]
    return f"# {words}\nHost {host(access.shell_id)}\n" + "".join(f"    {one}\n" for one in lines)


def host(shell_id: str) -> str:
    """The short name of a shell in `~/.ssh/config`."""
    return f"det-{shell_id[:8]}"
