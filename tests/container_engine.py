"""A Docker engine for tests, and an image made of this machine's own programs: no registry is needed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_NAMES = "sh bash cat cp df env id kill ls mkdir rm sleep sort stat touch true wc"
PROGRAMS = _NAMES.split()
START_SECONDS = 60.0
NO_NETWORK = ["--iptables=false", "--ip6tables=false", "--bridge=none"]
"""Containers use the machine's network here; an engine's rules would outlive it and cut off other bridges."""


def _docker(*args: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["docker", *args], capture_output=True, **options)  # type: ignore[call-overload, no-any-return]


def is_up() -> bool:
    if shutil.which("docker") is None:
        return False
    return _docker("version", "--format", "{{.Server.Version}}").returncode == 0


@contextlib.contextmanager
def running() -> Iterator[str | None]:
    """An engine within the block: the machine's own, else one that is started, after Debian's package was
    installed if it must be. Yields why there is none, or None.
    """
    if is_up():
        yield None
        return
    if os.geteuid() != 0:
        yield "no Docker engine answers, and only root can start one"
        return
    if shutil.which("dockerd") is None:
        problem = _install()
        if problem is not None:
            yield problem
            return
    with tempfile.TemporaryDirectory(prefix="determined-test-dockerd-") as folder:
        # The usual storage first; then one that needs no mounts.
        for more in ([], ["--storage-driver=vfs"]):
            log = Path(folder) / "log"
            with log.open("wb") as output:
                engine = subprocess.Popen(
                    ["dockerd", "--data-root", f"{folder}/data", *NO_NETWORK, *more],
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            try:
                deadline = time.monotonic() + START_SECONDS
                while engine.poll() is None and time.monotonic() < deadline:
                    if is_up():
                        yield None
                        return
                    time.sleep(0.1)
            finally:
                engine.terminate()
                engine.wait(START_SECONDS)
        yield f"dockerd does not start here: {log.read_text()[-500:]}"


def _install() -> str | None:
    if shutil.which("apt-get") is None:
        return "there is no dockerd here, and no apt-get to install one"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ["docker.io", "iptables"]
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-q", *command], env=env, capture_output=True, text=True)
        if done.returncode:
            return f"docker.io cannot be installed: {done.stderr[-300:]}"
    return None


@functools.cache
def machine_image() -> str:
    """The name of an image with a shell, a few programs and the libraries that this Python needs; Python and
    the packages come with ``container.harness: mounted``.
    """
    programs = [found for name in PROGRAMS if (found := shutil.which(name))]
    files = {Path(path) for path in (*programs, *_libraries([*programs, *_of_python()]))}
    name = "determined-test:" + hashlib.sha256(repr(sorted(files)).encode()).hexdigest()[:12]
    if _docker("image", "inspect", name).returncode:
        _docker("import", "-", name, input=_archive(files), check=True)
    return name


def _of_python() -> list[str]:
    """What of Python may need libraries of the machine."""
    folders = [Path(os.__file__).parent / "lib-dynload"]
    folders += [
        Path(sysconfig.get_path("platlib")) / name for name in ("torch/lib", "numpy", "orjson")
    ]
    found = [str(path) for folder in folders for path in folder.rglob("*.so*") if path.is_file()]
    return [os.path.realpath(sys.executable), *found]


def _libraries(programs: Iterable[str]) -> set[str]:
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    own = (sys.base_prefix, sys.prefix)
    found = set()
    for line in listed.splitlines():
        words = line.replace("=>", " ").split()
        path = next((word for word in words if word.startswith("/")), None)
        if path and line.startswith("\t") and not path.startswith(own) and Path(path).exists():
            found.add(path)
    return found


def _archive(files: Iterable[Path]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for folder in ("tmp", "root", "etc", "proc", "sys", "dev"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        for name, text in (("passwd", "root:x:0:0::/root:/bin/sh\n"), ("group", "root:x:0:\n")):
            info = tarfile.TarInfo(f"etc/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        for path in sorted(files):
            # Under the name that the loader looks for; links are followed.
            info = tar.gettarinfo(os.path.realpath(path), str(path).lstrip("/"))
            with path.open("rb") as file:
                tar.addfile(info, file)
            if path.parent == Path("/usr/bin") and Path("bin", path.name) not in files:
                link = tarfile.TarInfo(f"bin/{path.name}")
                link.type, link.linkname = tarfile.SYMTYPE, str(path)
                tar.addfile(link)
    return content.getvalue()


def containers(*filters: str) -> list[str]:
    """The names of the engine's containers, running or not, with these labels."""
    wanted = [word for label in filters for word in ("--filter", f"label={label}")]
    listed = _docker("ps", "--all", "--format", "{{.Names}}", *wanted, check=True)
    return listed.stdout.decode().split()


def remove(name: str) -> None:
    _docker("rm", "--force", "--volumes", name)


def remove_image(name: str) -> None:
    _docker("rmi", "--force", name)


def kill(name: str) -> None:
    _docker("kill", name, check=True)
