"""Tunnels to a service behind TLS, with a self-signed certificate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.certificates import self_signed
from tests.integration.service_api.test_proxy import Proxied, proxied, service, serving
from tests.waiting import TIMEOUT_S

__all__ = ["proxied", "service"]

NAME = "det.example.com"


@contextlib.asynccontextmanager
async def terminated(proxied: Proxied, certificate: Path) -> AsyncIterator[int]:
    """The port of what speaks TLS before the service."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inside, out = await asyncio.open_connection(*proxied.host)
        await asyncio.gather(copy(reader, out), copy(inside, writer))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(one, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
        server.close()


async def test_the_clients_tunnel_checks_the_certificate(proxied: Proxied, tmp_path: Path) -> None:
    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data.upper())
            await writer.drain()
        writer.close()

    certificate = self_signed(tmp_path / "own.pem", NAME)
    async with serving(upper) as port, terminated(proxied, certificate) as front:
        leg = await proxied.task(port)
        url = f"https://127.0.0.1:{front}"
        program = [sys.executable, "-m", "determined.cli.tunnel", url, f"{leg.task_id}:8265"]

        async def run(given: bytes, **trust: str) -> tuple[int | None, bytes, bytes]:
            env = {**os.environ, "DET_USER_TOKEN": proxied.token, "DET_MASTER": url, **trust}
            piped = await asyncio.create_subprocess_exec(
                *program, env=env, stdin=-1, stdout=-1, stderr=-1
            )
            out, err = await asyncio.wait_for(piped.communicate(given), TIMEOUT_S)
            return piped.returncode, out, err

        # Large enough that both directions are under way at once.
        whole = os.urandom(4 << 20)
        trust = {"DET_MASTER_CERT_FILE": str(certificate), "DET_MASTER_CERT_NAME": NAME}
        assert await run(whole, **trust) == (0, whole.upper(), b"")
        assert await run(b"abc", DET_MASTER_CERT_FILE="noverify") == (0, b"ABC", b"")
        code, _, said = await run(b"abc")
        assert code == 1 and b"its certificate is not trusted" in said, said
        code, _, said = await run(b"abc", DET_MASTER_CERT_FILE=str(certificate))
        assert code == 1 and b"say with DET_MASTER_CERT_NAME which name" in said, said
        code, _, said = await run(b"abc", DET_MASTER_CERT_FILE=str(tmp_path / "none.pem"))
        assert code == 1 and b"none.pem" in said and b"names a PEM file" in said, said
