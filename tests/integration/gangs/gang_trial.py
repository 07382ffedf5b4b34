"""A trial of several processes, and its service in the memory of the first."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from determined import core
from tests.training.frameworks.one_trial import OneTrial
from tests.unit.core.core_service import FakeService

RANK = int(os.environ.get("RANK", "0"))


def serve(service: FakeService) -> str:
    """Answers for ``service`` at a port until the process ends; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = httpx.Request(self.command, f"http://service{self.path}", content=content)
            answer = service.handle(asked)
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PATCH = answer  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class GangTrial(OneTrial):
    """Made by each process that ``determined.launch.torch_distributed`` has started; they enter ``leg()``
    together. The first process knows the service's answers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if RANK == 0:
            self.url = serve(self.service)
        else:
            self.transport = httpx.HTTPTransport(trust_env=False)

    def distributed(self) -> core.DistributedContext:
        return core.DistributedContext.from_torch_distributed()

    def preempt(self, context: core.Context) -> None:
        """Of all processes, in the first."""
        if RANK == 0:
            super().preempt(context)

    def summary(self) -> dict[str, Any]:
        """The requests that the service has received."""
        return {
            "training": self.reports("training"),
            "validation": self.reports("validation"),
            "checkpoints": self.checkpoints(),
            "acknowledged": sum(path.endswith("ack_preemption") for path in self.service.paths()),
            "completed": self.service.completed,
        }


def tell(folder: Path, results: dict[str, Any]) -> None:
    """Store the script's findings for the test, which runs in another process."""
    if RANK == 0:
        (folder / "results.json").write_text(json.dumps(results, default=float))
