"""Real servers that speak the protocols of object storages, each in a separate process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from tests.installed import kept, run_or_skip
from tests.waiting import until

KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
ROOT = Path(__file__).parents[1]
AZURITE_VERSION = "3.35.0"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Server:
    """A process that listens at a port of this machine; it can be killed and started again."""

    def __init__(self, command: list[str], port: int, folder: Path) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._command = command
        self._log = folder / f"server-{port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it accepts connections."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=ROOT)
        until("the server's port", self._accepts, show=self._log.read_text)

    def _accepts(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[Server]:
    server = Server(command, port, folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def moto(folder: Path, delay: float = 0.0) -> Iterator[Server]:
    """moto's S3; buckets that are directories of ``folder``/s3 outlive its process. ``delay``: seconds that
    a PUT takes longer."""
    port = free_port()
    (folder / "s3").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.moto_server", str(port), str(folder / "s3"), str(delay)]
    with running(command, port, folder) as server:
        yield server


def s3_client(server: Server) -> Any:
    return boto3.client("s3", endpoint_url=server.url, region_name="us-east-1", **KEYS)


def s3_section(server: Server, **more: Any) -> dict[str, Any]:
    """A ``checkpoint_storage`` section with a new bucket, which is made."""
    bucket = f"b-{uuid.uuid4().hex[:12]}"
    s3_client(server).create_bucket(Bucket=bucket)
    return {
        "type": "s3",
        "bucket": bucket,
        "endpoint_url": server.url,
        "access_key": KEYS["aws_access_key_id"],
        "secret_key": KEYS["aws_secret_access_key"],
        **more,
    }


@contextmanager
def gcs_emulator(folder: Path) -> Iterator[Server]:
    """gcp-storage-emulator, with the bucket ``checkpoints``."""
    port = free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host=127.0.0.1"]
    command += [f"--port={port}", "--in-memory", "--quiet", "--default-bucket=checkpoints"]
    with running(command, port, folder) as server:
        yield server


def azurite_program() -> str:
    """Microsoft's emulator of Azure Blob Storage: AZURITE, else from npm. Skips where npm is missing."""

    def install(home: Path) -> None:
        # Its packages' scripts compile modules that the tests do not need, with headers from another site.
        quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"]
        package = f"azurite@{AZURITE_VERSION}"
        run_or_skip(package, ["npm", "install", *quiet, "--prefix", str(home), package])

    given = os.environ.get("AZURITE")
    if given is not None:
        return given
    home = kept(f"azurite-{AZURITE_VERSION}", install)
    return str(home / "node_modules" / ".bin" / "azurite-blob")


@contextmanager
def azurite(folder: Path, program: str) -> Iterator[Server]:
    port = free_port()
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command += [
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--location",
        str(folder / "azurite"),
    ]
    with running(command, port, folder) as server:
        yield server


def azure_connection_string(server: Server) -> str:
    # The account and key that the emulator is documented to have.
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    return (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};"
        f"BlobEndpoint={server.url}/devstoreaccount1;"
    )
