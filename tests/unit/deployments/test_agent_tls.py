"""The agent checks the service's certificate as `det` does."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from determined.common.api import Session, errors
from determined_deployments.agent.service_client import ServiceClient
from tests.certificates import self_signed

NAME = "service.example"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


async def ask(certificate: Path) -> None:
    """One request of the agent's client and one of `det`'s to a service with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = ServiceClient(url, "token")
        try:
            assert await client.get_bytes("/x") == b"{}"
        finally:
            await client.close()
        with Session(url, "token", max_retries=0) as session:
            assert await asyncio.to_thread(session.get, "/x") == {}


def test_a_certificate_that_is_named_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path / "own.pem", NAME)
    with pytest.raises(errors.MasterNotFoundException, match="not trusted"):
        asyncio.run(ask(certificate))
    monkeypatch.setenv("DET_MASTER_CERT_FILE", str(certificate))
    with pytest.raises(errors.MasterNotFoundException, match="DET_MASTER_CERT_NAME"):
        asyncio.run(ask(certificate))
    monkeypatch.setenv("DET_MASTER_CERT_NAME", NAME)
    asyncio.run(ask(certificate))


def test_the_systems_store_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL's own variable names it here; an administrator adds authorities to the files."""
    certificate = self_signed(tmp_path / "own.pem", NAME)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("DET_MASTER_CERT_NAME", NAME)
    asyncio.run(ask(certificate))


def test_a_file_without_a_certificate_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_MASTER_CERT_FILE", str(tmp_path / "absent.pem"))
    with pytest.raises(errors.MasterNotFoundException, match=r"absent\.pem.*DET_MASTER_CERT_FILE"):
        ServiceClient("https://h", "token")
