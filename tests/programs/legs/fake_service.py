"""A service that only writes down what legs and agents tell it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import until

Answer = tuple[int, Any]


def archive(files: dict[str, str | bytes]) -> bytes:
    """A tar.gz of ``files``; scripts that end in ``.sh`` are executable."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue())


class FakeService:
    """Records requests; ``answers`` overrides the answer to a path's last word, ``gets`` returns the content
    of a path (and may wait). ``puts``: the received bodies, by path."""

    def __init__(self) -> None:
        self.model_defs: dict[str, bytes] = {}
        self.calls: list[tuple[float, str, Any]] = []
        self.senders: list[tuple[str, str]] = []
        """Each request's path, and with which token it came."""
        self.logs: list[dict[str, Any]] = []
        self.seen: set[tuple[str, int]] = set()
        self.exits: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Callable[[Any], Answer]] = {}
        self.gets: dict[str, Callable[[], bytes]] = {}
        self.puts: dict[str, bytes] = {}
        self.changed = threading.Condition()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                service.senders.append((self.path, self.headers["Authorization"]))
                service._get(self)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                service.senders.append((self.path, self.headers["Authorization"]))
                status, answer = service._post(self.path, body)
                service._answer(self, status, json.dumps(answer).encode())

            def do_PUT(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                service._put(self.path, self.rfile.read(length))
                service._answer(self, 200, b"{}")

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        # In one piece: two would wait for each other's acknowledgement, 40 ms.
        head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n\r\n"
        handler.wfile.write(head.encode() + body)

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        with self.changed:
            self.calls.append((time.time(), handler.path, None))
        given = self.gets.get(handler.path)
        found = given() if given else self.model_defs.get(handler.path.rpartition("/")[2])
        self._answer(handler, 200 if found else 404, found or b"{}")

    def _put(self, path: str, content: bytes) -> None:
        with self.changed:
            self.calls.append((time.time(), path, None))
            self.puts[path] = content

    def _post(self, path: str, body: Any) -> Answer:
        override = self.answers.get(path.rpartition("/")[2])
        if override is not None:
            status, answer = override(body)
            if status != 200 or answer is not None:
                return status, answer
        with self.changed:
            self.calls.append((time.time(), path, body))
            if path.endswith("/logs"):
                key = (body["stream"], body["seq"])
                if key not in self.seen:
                    self.seen.add(key)
                    self.logs += [
                        {**line, "allocation": body["allocation_id"]} for line in body["lines"]
                    ]
            elif path.endswith("/exit"):
                self.exits.setdefault(path.split("/")[-2], body)
            self.changed.notify_all()
        return 200, {}

    def wait(self, condition: Callable[[], Any]) -> None:
        """Returns once ``condition`` is true. The check is polled, because not every fact that tests check is
        a report that would wake the waiter."""

        def check() -> bool:
            with self.changed:
                return bool(condition())

        last = lambda: f"it was told last: {[call[1:] for call in self.calls[-5:]]}"  # noqa: E731
        until("what the service is told", check, show=last)

    def text(self, stdtype: str, source: str = "task") -> str:
        return "".join(
            line["log"]
            for line in self.logs
            if line["stdtype"] == stdtype and line["source"] == source
        )

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.calls]


def spec(allocation_id: str = "7.abc.1", **fields: Any) -> dict[str, Any]:
    """A LegSpec as the service sends it."""
    return {
        "allocation_id": allocation_id,
        "task_id": "7.abc",
        "task_type": "TRIAL",
        "experiment_id": 7,
        "trial_id": 21,
        "run_id": 1,
        "flow_run_id": None,
        "slot_ids": [0],
        "resource_pool": "default",
        "entrypoint": "python3 train.py",
        "model_def_hash": "d1",
        "config": {"name": "test"},
        "hparams": {"lr": 0.1},
        "trial_seed": 17,
        "latest_checkpoint": None,
        "steps_completed": 0,
        "session_token": "v2.token",
        "cluster_id": "c",
        "owner": "determined",
        "env": {},
        "environment_variables": [],
        "cluster_name": "determined",
        **fields,
    }
