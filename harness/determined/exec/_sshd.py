"""sshd for a shell, as the task's own account: without rights of root, one process for each connection."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from determined.common.wire import shells

SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/libexec/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/lib/sftp-server",
    "/usr/local/libexec/sftp-server",
)
RUN = Path("/run/sshd")
"""sshd wants this empty folder when it is root's."""
SECONDS = 20.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables of the process that serves the shell, or of the user's own terminal.
_OWN = ("DET_SHELL_", "SSH_")
_OWN_NAMES = frozenset(
    (
        *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "DISPLAY"),
        *("PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "PYTHONSAFEPATH", "LISTEN_FDS"),
    )
)


class NoSshd(Exception):
    """No sshd can run here; the message says why."""


@dataclass(frozen=True)
class Sshd:
    """``argv`` serves one connection, its standard input. ``account``: who logs in; ``host_key``: public;
    ``no_tty``: why its sessions cannot have a terminal, or empty."""

    argv: list[str]
    account: str
    host_key: str
    has_sftp: bool
    no_tty: str


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of the task's environment that everyone who enters the task gets."""
    return {
        name: value
        for name, value in env.items()
        if not name.startswith(_OWN) and name not in _OWN_NAMES
    }


def login_shell(env: Mapping[str, str]) -> str:
    """The account's own, if it is one that lets people in; else the best that there is."""
    try:
        chosen = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        chosen = ""
    if _lets_in(chosen):
        return chosen
    path = env.get("PATH", os.defpath)
    return shutil.which("bash", path=path) or shutil.which("sh", path=path) or "/bin/sh"


def _lets_in(shell: str) -> bool:
    return os.access(shell, os.X_OK) and Path(shell).name not in ("nologin", "false", "true")


def prepare(folder: Path, public_key: str, env: Mapping[str, str], work_dir: str) -> Sshd:
    """Writes everything that sshd needs into ``folder``. Raises NoSshd."""
    path = f"{env.get('PATH', '')}:{shells.SSHD_FOLDERS}"
    sshd, keygen = (shutil.which(name, path=path) for name in shells.SSHD_PROGRAMS)
    if sshd is None or keygen is None:
        raise NoSshd("no sshd is installed here (package openssh-server)")
    account = _account()
    sftp = next((one for one in SFTP_SERVERS if os.access(one, os.X_OK)), None)
    host_key = folder / "host_key"
    if not host_key.exists():
        _run([keygen, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(host_key)])
    session, variables, keys, config = (
        folder / name for name in ("session", "environment", "authorized_keys", "sshd_config")
    )
    _write(variables, _exports(environment(env)))
    _write(session, session_script(variables, work_dir, login_shell(env)))
    _write(keys, public_key.strip() + "\n")
    _write(config, configuration(account, host_key, keys, session, sftp))
    if os.geteuid() == 0:
        RUN.mkdir(parents=True, exist_ok=True, mode=0o755)
    argv = [sshd, "-i", "-e", "-f", str(config)]
    _run([sshd, "-t", "-f", str(config)])
    kind, text = (folder / "host_key.pub").read_text().split()[:2]
    return Sshd(argv, account, f"{kind} {text}", sftp is not None, _no_tty())


def _account() -> str:
    uid = os.getuid()
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        raise NoSshd(f"the task runs as uid {uid}, which has no name here") from None
    if not _lets_in(found.pw_shell):
        raise NoSshd(f"account {found.pw_name} has no shell to log in with ({found.pw_shell!r})")
    if uid == 0 and _is_locked(found.pw_name):
        raise NoSshd(f"account {found.pw_name} is locked here (passwd -S {found.pw_name})")
    return found.pw_name


def _is_locked(name: str) -> bool:
    try:
        lines = Path("/etc/shadow").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith(f"{name}:!") for line in lines)


def _no_tty() -> str:
    """sshd gives each terminal to the group tty, and ends the session where it may not."""
    try:
        group = grp.getgrnam("tty").gr_gid
    except KeyError:
        return ""
    if os.geteuid() == 0 or group in (os.getegid(), *os.getgroups()):
        return ""
    ends = os.openpty()
    try:
        own = os.fstat(ends[1]).st_gid
    finally:
        for end in ends:
            os.close(end)
    if own == group:
        return ""
    return f"sshd cannot give terminals to the group tty here (mount /dev/pts with gid={group})"


def _run(argv: list[str]) -> None:
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoSshd(f"{Path(argv[0]).name} does not run here: {error}") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:300]
        raise NoSshd(f"{Path(argv[0]).name} does not run here: {said or done.returncode}")


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", errors="surrogateescape") as file:
        file.write(text)


def _exports(env: Mapping[str, str]) -> str:
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for name, value in env.items()
        if _NAME.fullmatch(name)
    ]
    return "".join(lines)


def session_script(variables: Path, work_dir: str, shell: str) -> str:
    """The script run for each session: it sets the task's environment and directory, then runs the command.

    No login shell: /etc/profile would set another PATH.
    """
    return f"""\
. {shlex.quote(str(variables))}
cd -- {shlex.quote(work_dir)} 2>/dev/null || cd
SHELL={shlex.quote(shell)}
export SHELL
if [ -z "${{SSH_ORIGINAL_COMMAND+given}}" ]; then exec "$SHELL"; fi
command=$SSH_ORIGINAL_COMMAND
unset SSH_ORIGINAL_COMMAND
exec "$SHELL" -c "$command"
"""


def configuration(account: str, host_key: Path, keys: Path, session: Path, sftp: str | None) -> str:
    """Of an sshd that lets in the shell's key and nothing else."""
    forced = shlex.join(["/bin/sh", str(session)])
    lines = [
        f"HostKey {_quoted(host_key)}",
        f"AuthorizedKeysFile {_quoted(keys)}",
        f"AllowUsers {account}",
        "AuthenticationMethods publickey",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitEmptyPasswords no",
        "PermitRootLogin prohibit-password",
        # The folder is the account's own, wherever it lies.
        "StrictModes no",
        "UsePAM no",
        "UseDNS no",
        "PidFile none",
        "PermitUserEnvironment no",
        "PermitUserRC no",
        "PrintMotd no",
        "PrintLastLog no",
        "X11Forwarding no",
        "GatewayPorts no",
        "PermitTunnel no",
        "AllowTcpForwarding yes",
        "AllowAgentForwarding yes",
        "LoginGraceTime 30",
        "MaxAuthTries 3",
        "MaxSessions 100",
        # Whoever has gone without a word is noticed, and no proxy on the way takes the silence for an end.
        "ClientAliveInterval 30",
        "ClientAliveCountMax 4",
        "AcceptEnv LANG LC_* COLORTERM TERM_PROGRAM TERM_PROGRAM_VERSION",
        f"ForceCommand {forced}",
    ]
    if sftp is not None:
        lines.append(f"Subsystem sftp {sftp}")
    return "\n".join(lines) + "\n"


def _quoted(path: Path) -> str:
    # A percent sign begins a token of sshd's.
    return '"' + str(path).replace("%", "%%") + '"'
