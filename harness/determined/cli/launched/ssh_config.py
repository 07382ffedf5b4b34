"""The part of `~/.ssh/config` that `det shell config-ssh` keeps: one line that includes our own files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

BEGIN = "# det shell config-ssh: begin"
END = "# det shell config-ssh: end"


def users_file() -> Path:
    """`~/.ssh/config`, or the file that it is a link to."""
    return Path(os.path.realpath(Path.home() / ".ssh" / "config"))


def own_folder() -> Path:
    from determined.common.api.token_store import config_dir

    return config_dir() / "ssh"


def own_file(master: str) -> Path:
    """The file for the shells of one cluster."""
    return own_folder() / f"{hashlib.sha256(master.encode()).hexdigest()[:12]}.conf"


def write(master: str, text: str) -> Path:
    """The shells of the cluster at ``master`` are from now on those in ``text``. The file."""
    path = own_file(master)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _replace(path, text)
    include()
    return path


def remove(master: str) -> bool:
    """Whether there was something to remove."""
    path = own_file(master)
    had = path.exists()
    path.unlink(missing_ok=True)
    if not list(own_folder().glob("*.conf")):
        had = exclude() or had
    return had


def include() -> None:
    """Adds our line, at the top: further below it would belong to a Host. Done twice it changes nothing."""
    path = users_file()
    text = path.read_text() if path.exists() else ""
    found = f'{BEGIN}\nInclude "{own_folder()}/*.conf"\n{END}\n'
    changed = found + _without(text)
    if changed != text:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(path, changed)


def exclude() -> bool:
    """Takes our line out. Whether it was there."""
    path = users_file()
    if not path.exists():
        return False
    text = path.read_text()
    changed = _without(text)
    if changed == text:
        return False
    _replace(path, changed)
    return True


def _without(text: str) -> str:
    before, begin, rest = text.partition(BEGIN + "\n")
    _, end, after = rest.partition(END + "\n")
    return before + after if begin and end else text


def _replace(path: Path, text: str) -> None:
    """In one step, with the rights that the file has."""
    mode = 0o600
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode & 0o777
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    with os.fdopen(descriptor, "w") as made:
        made.write(text)
    Path(name).chmod(mode)
    Path(name).replace(path)
