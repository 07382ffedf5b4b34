"""Checkpoints of 2 GB through the service, beside a copy straight from the storage; model definitions.

The service is killed and started again in the middle of one download.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.stalls import Service, service
from determined import storage
from determined.common.api import transport
from determined.experimental import Determined
from determined.experimental.client import DownloadMode

GIB = 1 << 30
FILES = {"model.bin": 3 * GIB // 2, "optimizer.bin": GIB // 2, "notes.txt": 5}


def _own_cpu() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def _store(section: dict[str, Any]) -> tuple[str, Any]:
    name = str(uuid.uuid4())
    with storage.build(section).store(name) as staging:
        piece = os.urandom(1 << 24)
        for path, size in FILES.items():
            with (staging.path / path).open("wb") as file:
                for _ in range(0, size, len(piece)):
                    file.write(piece[: size - file.tell()])
    return name, staging.manifest


def _report(running: Service, section: dict[str, Any], name: str, manifest: Any) -> None:
    """As an unmanaged trial's checkpoint."""
    with running.client() as client:
        config = (
            "name: download\nsearcher: {name: single, metric: x, max_length: {batches: 1}}\n"
            "entrypoint: x\ncheckpoint_storage: " + json.dumps(section)
        )
        made = _posted(client, "/api/v1/experiments", {"config": config, "unmanaged": True})
        trial = _posted(
            client,
            "/api/v1/trials",
            {"experimentId": made["experiment"]["id"], "unmanaged": True, "hparams": {}},
        )
        body = {
            "uuid": name,
            "taskId": trial["trial"]["taskIds"][0],
            "resources": dict(manifest.resources),
            "checksums": dict(manifest.checksums),
            "metadata": {"steps_completed": 1},
            "state": "STATE_COMPLETED",
        }
        _posted(client, "/api/v1/checkpoints", body)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in FILES:
        with (folder / path).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _measured(running: Service, what: str, work: Callable[[], object]) -> None:
    running.stalls()
    began, own, theirs = time.perf_counter(), _own_cpu(), running.cpu_s()
    work()
    seconds = time.perf_counter() - began
    gigabytes = sum(FILES.values()) / 1e9
    print(
        f"{what}: {1000 * gigabytes / seconds:.0f} MB/s; CPU per GB: client"
        f" {(_own_cpu() - own) / gigabytes:.2f} s, service with its readers"
        f" {(running.cpu_s() - theirs) / gigabytes:.2f} s; {running.stalls()}; peak MB"
        f" {', '.join(f'{size:.0f}' for size in running.peak_mb())}",
        flush=True,
    )


def _archive(running: Service, name: str, kind: str) -> None:
    with (
        running.client() as client,
        client.stream("GET", f"/checkpoints/{name}", headers={"Accept": kind}) as answer,
    ):
        answer.raise_for_status()
        for _ in answer.iter_raw():
            pass


def _posted(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=body)
    if answer.status_code != 200:
        raise SystemExit(f"{path}: {answer.text}")
    return answer.json()


def _restarted(running: Service, name: str, target: Path) -> int:
    """Downloads while the service is killed after a third; returns the bytes that arrived."""
    read = transport.Response.iter_bytes
    seen = 0
    killed = False

    def counted(self: transport.Response) -> Iterator[bytes]:
        nonlocal seen, killed
        for chunk in read(self):
            seen += len(chunk) if self.status_code == 206 else 0
            if seen > sum(FILES.values()) // 3 and not killed:
                killed = True
                running.kill()
                threading.Thread(target=running.start).start()
            yield chunk

    transport.Response.iter_bytes = counted  # type: ignore[method-assign]
    try:
        client = Determined(running.url, "determined", "")
        client.get_checkpoint(name).download(str(target), DownloadMode.MASTER)
    finally:
        transport.Response.iter_bytes = read  # type: ignore[method-assign]
    return seen


def checkpoints(folder: Path) -> None:
    section = {"type": "shared_fs", "host_path": str(folder / "storage")}
    Path(section["host_path"]).mkdir()
    with service(default_checkpoint_storage=section) as running:
        name, manifest = _store(section)
        _report(running, section, name, manifest)
        client = Determined(running.url, "determined", "")
        found = client.get_checkpoint(name)
        wanted = _digest(Path(section["host_path"]) / name)
        for mode in (DownloadMode.DIRECT, DownloadMode.MASTER):
            target = folder / mode.value
            _measured(running, f"--mode {mode.value}", lambda: found.download(str(target), mode))  # noqa: B023
            assert _digest(target) == wanted
            shutil.rmtree(target)
        for kind in ("application/gzip", "application/zip"):
            _measured(running, kind, lambda: _archive(running, name, kind))  # noqa: B023
        began = time.perf_counter()
        seen = _restarted(running, name, folder / "restarted")
        same = _digest(folder / "restarted") == wanted
        print(
            f"service killed after a third: {time.perf_counter() - began:.1f} s, {seen} of"
            f" {sum(FILES.values())} bytes were sent, equal: {same}",
            flush=True,
        )
        assert same


def model_definitions() -> None:
    """Two clients at once download 95 MiB each: a user's answer in base64, and an agent's."""
    section = {"type": "shared_fs", "host_path": "/nowhere"}
    with service(default_checkpoint_storage=section) as running, running.client() as client:
        content = base64.b64encode(os.urandom(94 << 20)).decode()
        files = [{"path": "weights.bin", "content": content, "type": 48, "mode": 420}]
        config = "name: x\nsearcher: {name: single, metric: x, max_length: {batches: 1}}\nentrypoint: x\n"
        body = {"config": config, "modelDefinition": files, "activate": False}
        number = _posted(client, "/api/v1/experiments", body)["experiment"]["id"]

        def download() -> None:
            with (
                running.client() as one,
                one.stream("GET", f"/api/v1/experiments/{number}/model_def") as answer,
            ):
                answer.raise_for_status()
                for _ in answer.iter_raw():
                    pass

        running.stalls()
        began, theirs = time.perf_counter(), running.cpu_s()
        threads = [threading.Thread(target=download) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(
            f"two model definitions of 94 MiB at once: {time.perf_counter() - began:.1f} s,"
            f" {running.cpu_s() - theirs:.2f} s of the service's CPU; {running.stalls()}; peak MB"
            f" {running.peak_mb()[0]:.0f}",
            flush=True,
        )


def main() -> None:
    model_definitions()
    with tempfile.TemporaryDirectory(prefix="det-bench-") as folder:
        checkpoints(Path(folder))


if __name__ == "__main__":
    main()
