"""A Docker engine for tests, and an image made of this machine's own programs: no registry is needed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests import installed
from tests.engine_log import EngineLog

_NAMES = "sh bash cat cp df env id kill ls mkdir rm sleep sort stat touch true wc"
PROGRAMS = _NAMES.split()
# sshd gives up its rights to an account of this name.
PASSWD = "root:x:0:0::/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n"
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
    installed if it must be. Yields the reason why no engine can run, or None.
    """
    if is_up():
        yield None
        return
    if os.geteuid() != 0:
        yield "no Docker engine answers, and only root can start one"
        return
    if (problem := _install()) is not None:
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
                    env=_environment(),
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


@contextlib.contextmanager
def own(*options: str, network: Iterable[str] = NO_NETWORK) -> Iterator[Engine | str]:
    """A private engine within the block, which may be killed and started again, and to which ``DOCKER_HOST``
    points; or the reason why there is none. ``options``: more of dockerd's."""
    if os.geteuid() != 0:
        yield "only root can start a Docker engine"
        return
    if (problem := _install()) is not None:
        yield problem
        return
    before = os.environ.get("DOCKER_HOST")
    with tempfile.TemporaryDirectory(prefix="determined-test-dockerd-") as folder:
        # Root of its containers, which may be another account here, has to get to its data.
        Path(folder).chmod(0o711)
        engine = Engine(Path(folder), [*network, *options])
        os.environ["DOCKER_HOST"] = engine.host
        try:
            try:
                engine.start()
            except AssertionError as error:
                yield str(error)
                return
            yield engine
        finally:
            engine.close()
            if before is None:
                del os.environ["DOCKER_HOST"]
            else:
                os.environ["DOCKER_HOST"] = before


class Engine:
    """A dockerd and a containerd with their own sockets and data, beside any others on the machine.

    As with Debian's and Docker's packages they are two services: the engine's end is not containerd's.
    """

    def __init__(self, folder: Path, options: Iterable[str] = ()) -> None:
        self.host = f"unix://{folder}/docker.sock"
        self._folder = folder
        self._options = list(options)
        self._containerd: subprocess.Popen[bytes] | None = None
        self._dockerd: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """dockerd's; None while it does not run."""
        return self._dockerd.pid if _runs(self._dockerd) and self._dockerd else None

    def start(self) -> None:
        """Returns when it answers, or raises AssertionError; does nothing while it runs."""
        folder, socket = self._folder, self._folder / "containerd.sock"
        if not _runs(self._containerd):
            config = folder / "containerd.toml"
            config.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
            places = ["--root", f"{folder}/containerd", "--state", f"{folder}/run-containerd"]
            command = ["containerd", "--config", str(config), "--address", str(socket), *places]
            self._containerd = self._run("containerd", command)
            self._wait("containerd", self._containerd, socket.exists)
        if not _runs(self._dockerd):
            places = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/run-docker"]
            places += ["--host", self.host, "--pidfile", f"{folder}/pid"]
            command = ["dockerd", "--containerd", str(socket), *places, *self._options]
            self._dockerd = self._run("dockerd", command)
            self._wait("dockerd", self._dockerd, is_up)

    def _run(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(),
            )

    def _wait(
        self, name: str, process: subprocess.Popen[bytes], is_ready: Callable[[], bool]
    ) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            log = (self._folder / f"{name}.log").read_text()[-1000:]
            assert _runs(process), f"{name} does not start here: {log}"
            assert time.monotonic() < deadline, f"{name} does not answer: {log}"
            time.sleep(0.1)

    def stop(self) -> None:
        """Like `systemctl stop docker`: without live-restore the engine's containers end with the engine."""
        _end(self._dockerd, signal.SIGTERM)

    def kill(self) -> None:
        """``kill -9`` of dockerd: its containers go on until its next start, which ends them (without
        live-restore)."""
        _end(self._dockerd, signal.SIGKILL)

    @contextlib.contextmanager
    def log_of(self, name: str) -> Iterator[EngineLog]:
        """The engine's log of that container, to be read within the block."""
        found = _docker("inspect", "--format", "{{.Id}}", name, check=True).stdout.decode().strip()
        log = EngineLog(self._folder / "data/containers" / found / "local-logs/container.log")
        try:
            yield log
        finally:
            log.close()

    def close(self) -> None:
        """End the engine and its containers."""
        with contextlib.suppress(AssertionError):
            self.start()
            for name in containers():
                remove(name)
        self.stop()
        _end(self._containerd, signal.SIGTERM)
        # The mounts that a killed engine left.
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (target := line.split()[1]).startswith(f"{self._folder}/"):
                subprocess.run(["umount", "--lazy", target], check=False)


@contextlib.contextmanager
def bridge() -> Iterator[tuple[str, list[str]] | str]:
    """Within the block, a container network that reaches only this machine. Yields the machine's address in
    the network and the engine's options, or the reason why the network cannot be made. Nobody's packet filter
    is touched.
    """
    ip, address = shutil.which("ip"), "10.213.7.1"
    if ip is None or os.geteuid() != 0:
        yield "a bridge takes root and iproute2"
        return
    if _bridges_are_filtered():
        yield (
            "this machine's packet filter drops packets between containers of a bridge, as an engine with its"
            " usual rules sets it up (`iptables -P FORWARD ACCEPT` undoes that)"
        )
        return
    name = "det-test0"

    def run(*words: str) -> bool:
        return subprocess.run([ip, *words], capture_output=True).returncode == 0

    try:
        if not run("link", "add", name, "type", "bridge"):
            yield "no bridge can be made here"
            return
        run("address", "add", f"{address}/24", "dev", name)
        run("link", "set", name, "up")
        options = [*NO_NETWORK[:2], "--ip-forward=false", f"--bridge={name}"]
        yield address, options
    finally:
        run("link", "delete", name)


def _bridges_are_filtered() -> bool:
    """True if packets that stay in one bridge pass a filter whose default is to drop them."""
    with contextlib.suppress(OSError):
        if Path("/proc/sys/net/bridge/bridge-nf-call-iptables").read_text().strip() == "1":
            found = subprocess.run(["iptables", "-S", "FORWARD"], capture_output=True, text=True)
            return "-P FORWARD DROP" in found.stdout
    return False


def _runs(process: subprocess.Popen[bytes] | None) -> bool:
    return process is not None and process.poll() is None


def _end(process: subprocess.Popen[bytes] | None, number: signal.Signals) -> None:
    if process is not None:
        process.send_signal(number)
        process.wait(START_SECONDS)


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": installed.PATH}


def _install() -> str | None:
    return installed.from_debian(["dockerd", "docker"], ["docker.io", "iptables"])


SSH_SERVER = ("/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/lib/openssh/sftp-server")
"""What an image needs beside, for shells by ssh."""


def machine_image(more: Iterable[str] = ()) -> str:
    """The name of an image with a shell, a few programs (and ``more``, by their paths) and the libraries that
    these and this Python need; Python and the packages come with ``container.harness: mounted``.
    """
    files = _image_files(tuple(more))
    name = "determined-test:" + hashlib.sha256(repr((2, sorted(files))).encode()).hexdigest()[:12]
    if _docker("image", "inspect", name).returncode:
        _docker("import", "-", name, input=_archive(files), check=True)
    return name


@functools.cache
def _image_files(more: tuple[str, ...]) -> frozenset[Path]:
    programs = [found for name in PROGRAMS if (found := shutil.which(name))] + list(more)
    return frozenset(Path(path) for path in (*programs, *_libraries([*programs, *_of_python()])))


def _of_python() -> list[str]:
    """The parts of Python that may need libraries of the machine."""
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
        above = {str(one).lstrip("/") for path in files for one in path.parents} - {""}
        # Make all of them, because directories that the engine makes belong to root.
        for folder in sorted({"tmp", "root", "etc", "proc", "sys", "dev", "bin", *above}):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        for name, text in (("passwd", PASSWD), ("group", "root:x:0:\n")):
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


def has_image(name: str) -> bool:
    return _docker("image", "inspect", name).returncode == 0


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


def run_inside(name: str, *command: str) -> None:
    _docker("exec", name, *command, check=True)


def first_process(name: str) -> int:
    """The process id, on this machine, of the container's first process."""
    found = _docker("inspect", "--format", "{{.State.Pid}}", name, check=True)
    return int(found.stdout)
