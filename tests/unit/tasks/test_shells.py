"""The files and processes of a shell's task and `det`: sshd's configuration, terminals, `~/.ssh/config`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from determined.cli.launched import ssh_config
from determined.common.wire import shells
from determined.common.wire.shells import Frame, Frames
from determined.exec import _sshd
from determined.exec._terminals import TerminalProgram, Terminals
from determined_service.base.ssh_keys import new_key
from tests.waiting import TIMEOUT_S, until_async

SECRET = "the-secret"


def test_a_new_key_is_one_that_ssh_reads(tmp_path: Path) -> None:
    key, other = new_key("mine"), new_key("other")
    assert key.private != other.private
    assert shells.is_host_key(" ".join(key.public.split()[:2])) and key.public.endswith(" mine")
    # The proof that opens a terminal depends only on the key, not on the ends of its lines.
    secret = shells.terminal_secret(key.private)
    assert secret == shells.terminal_secret(key.private.rstrip()) != shells.terminal_secret("")
    if (keygen := shutil.which("ssh-keygen")) is not None:
        path = tmp_path / "key"
        path.write_text(key.private)
        path.chmod(0o600)
        done = subprocess.run([keygen, "-y", "-f", path], capture_output=True, text=True)
        assert done.stdout.split()[:2] == key.public.split()[:2], done.stderr


@pytest.mark.parametrize(
    "name", ["", "-oProxyCommand=x", "a b", "a\nHost *", "a" * 300, "ro%ot", 'a"b', "a$b"]
)
def test_an_invalid_account_does_not_reach_ssh(name: str) -> None:
    assert not shells.is_account(name)
    assert not shells.is_host_key(f"ssh-ed25519 {'A' * 68} {name}")


def test_the_session_has_the_tasks_environment_and_directory(tmp_path: Path) -> None:
    odd = "two words 'quoted'\nand $HOME"
    work_dir = tmp_path / "it's here"
    work_dir.mkdir()
    env = {"ODD": odd, "DET_SHELL_SECRET_HASH": "x", "SSH_AUTH_SOCK": "/x", "A-B": "no name"}
    variables = tmp_path / "environment"
    variables.write_text(_sshd._exports(_sshd.environment(env)))
    script = tmp_path / "session"
    script.write_text(_sshd.session_script(variables, str(work_dir), "/bin/sh"))
    asked = {
        "PATH": os.environ["PATH"],
        "SSH_ORIGINAL_COMMAND": 'printf "%s|$PWD|$DET_SHELL_SECRET_HASH|${SSH_ORIGINAL_COMMAND-gone}" "$ODD"',
    }
    done = subprocess.run(["/bin/sh", str(script)], env=asked, capture_output=True, text=True)
    assert done.stdout == f"{odd}|{work_dir}||gone", done.stderr


def test_sshd_lets_in_the_one_key(tmp_path: Path) -> None:
    text = _sshd.configuration(
        "ann", tmp_path / "100% mine", tmp_path / "keys", tmp_path / "a session", None
    )
    lines = text.splitlines()
    assert {"AllowUsers ann", "AuthenticationMethods publickey", "UsePAM no"} <= set(lines)
    assert f'HostKey "{tmp_path}/100%% mine"' in lines
    assert f"ForceCommand /bin/sh '{tmp_path}/a session'" in lines
    assert "Subsystem" not in text


def test_without_sshd_the_words_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells, "SSHD_FOLDERS", str(tmp_path))
    with pytest.raises(_sshd.NoSshd, match=r"no sshd is installed here \(package openssh-server\)"):
        _sshd.prepare(tmp_path, "ssh-ed25519 AAAA", {"PATH": str(tmp_path)}, str(tmp_path))


def test_frames_come_as_they_were_sent_however_they_are_cut() -> None:
    sent = [(Frame.OUTPUT, b"x" * shells.FRAME_BYTES), (Frame.OUTPUT, b"yz"), (Frame.EXIT, b"")]
    data = shells.frame(Frame.OUTPUT, b"x" * shells.FRAME_BYTES + b"yz") + shells.frame(Frame.EXIT)
    frames, found = Frames(), []
    for at in range(0, len(data), 5000):
        found += frames.feed(data[at : at + 5000])
    assert found == sent
    with pytest.raises(ValueError, match="a frame of"):
        Frames().feed(b"\x02\xff\xff\xff\xff")


class Client:
    """One connection to the terminals."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer, self.frames = reader, writer, Frames()
        self.output = b""

    def send(self, kind: Frame, content: bytes = b"") -> None:
        self.writer.write(shells.frame(kind, content))

    def hello(self, secret: str = SECRET, **more: object) -> None:
        self.send(Frame.HELLO, json.dumps({"secret": secret, **more}).encode())

    async def until(self, word: bytes) -> tuple[int, bytes] | None:
        """Reads until the output has ``word``, or to the last frame, which it returns."""
        while word not in self.output:
            data = await self.reader.read(65536)
            if not data:
                return None
            for kind, content in self.frames.feed(data):
                if kind != Frame.OUTPUT:
                    return kind, content
                self.output += content
        return None

    async def end(self) -> tuple[int, bytes] | None:
        return await self.until(b"\0 never said")


@asynccontextmanager
async def terminals(folder: Path, used: list[int], shell: str = "/bin/sh") -> AsyncIterator[Client]:
    env = {"PATH": os.environ["PATH"], "PS1": "prompt> "}
    made = Terminals(
        shells.hash_of(SECRET), TerminalProgram([shell], env, str(folder)), used.append
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await made.serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        yield Client(reader, writer)
        writer.close()


@pytest.fixture
def background() -> Iterator[None]:
    """This process as `nohup` and a shell's `&` would start it."""
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("background")
async def test_a_terminal(tmp_path: Path) -> None:
    used: list[int] = []
    async with terminals(tmp_path, used) as client:
        client.hello(term="xterm-256color", rows=30, columns=90)
        client.send(Frame.INPUT, b"stty size; echo $TERM; pwd\n")
        await client.until(b"30 90")
        await client.until(str(tmp_path).encode())
        assert b"xterm-256color" in client.output
        # Ctrl-C reaches the program that runs, and not the shell.
        client.send(Frame.RESIZE, b'{"rows": 40, "columns": 100}')
        client.send(Frame.INPUT, b"sh -c 'echo beg\"\"un; exec sleep 1000'\n")
        await client.until(b"begun")
        client.send(Frame.INPUT, b"\x03")
        client.send(Frame.INPUT, b"stty size\n")
        await client.until(b"40 100")
        client.send(Frame.INPUT, b"exit 9\n")
        assert await client.end() == (Frame.EXIT, b'{"code": 9}')
        await until_async("the terminal's end", lambda: used, equals=[1, -1])


@pytest.mark.usefixtures("background")
async def test_a_leaving_client_takes_the_programs_along(tmp_path: Path) -> None:
    used: list[int] = []
    async with terminals(tmp_path, used) as client:
        client.hello()
        loop = b"trap 'touch hung-up; exit' HUP; echo read''y; while :; do sleep 0.01; done"
        client.send(Frame.INPUT, b'exec sh -c "' + loop + b'"\n')
        await client.until(b"ready")
        client.writer.close()
        await until_async("the program's end", lambda: (tmp_path / "hung-up").exists())
        await until_async("the terminal's end", lambda: used, equals=[1, -1])


@pytest.mark.usefixtures("background")
@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
@pytest.mark.parametrize(
    "lines", [b"", b"echo ta$((40+2))", b"cat\nta42\n", b"sleep 0.5; cat; sh\nta42\n"]
)
async def test_the_end_of_the_input_ends_the_programs(
    tmp_path: Path, shell: str, lines: bytes
) -> None:
    """A shell that has not begun to read, one with half a line, and programs that read, too."""
    used: list[int] = []
    async with terminals(tmp_path, used, shell) as client:
        client.hello()
        if lines:
            client.send(Frame.INPUT, lines)
        client.send(Frame.END)
        kind, content = await client.end() or (0, b"")
        assert kind == Frame.EXIT and json.loads(content)["code"] == 0, client.output
        assert not lines or b"ta42" in client.output
        await until_async("the terminal's end", lambda: used, equals=[1, -1])


async def test_a_terminal_needs_the_key(tmp_path: Path) -> None:
    for hello in (b'{"secret": "guessed"}', b"{}", b"[]", b"no json"):
        used: list[int] = []
        async with terminals(tmp_path, used) as client:
            client.send(Frame.HELLO, hello)
            client.send(Frame.INPUT, b"touch entered\n")
            kind, words = await client.end() or (0, b"")
            assert kind == Frame.REFUSED and words
        assert used == []
    assert not (tmp_path / "entered").exists()


def test_ssh_config_is_included_once_and_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "own config"))
    dotfiles = tmp_path / "dotfiles"
    dotfiles.write_text("Host mine\n    User me\n")
    dotfiles.chmod(0o640)
    config = tmp_path / ".ssh" / "config"
    config.parent.mkdir()
    config.symlink_to(dotfiles)
    for text in ("Host det-1\n", "Host det-2\n"):
        path = ssh_config.write("http://one", text)
        assert path.read_text() == text and path.stat().st_mode & 0o777 == 0o600
    ssh_config.write("http://two", "")
    lines = config.read_text().splitlines()
    assert lines[1] == f'Include "{tmp_path}/own config/ssh/*.conf"'
    assert lines[3:] == ["Host mine", "    User me"]
    assert config.is_symlink() and dotfiles.stat().st_mode & 0o777 == 0o640
    assert ssh_config.remove("http://one") and len(config.read_text().splitlines()) == 5
    assert ssh_config.remove("http://two") and config.read_text() == "Host mine\n    User me\n"
    assert not ssh_config.remove("http://two")
