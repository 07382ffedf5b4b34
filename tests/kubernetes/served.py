"""What a cluster on this machine asks for: an admission webhook, and a registry that has no image."""

from __future__ import annotations

import contextlib
import http.server
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests import certificates

Answer = Callable[[str, bytes], tuple[int, Any]]
"""To a path and a body: the status, and what is sent as JSON."""


@contextlib.contextmanager
def webhook(words: str) -> Iterator[tuple[str, bytes]]:
    """One that refuses everything with these words, within the block: its address and its certificate."""

    def refuse(path: str, body: bytes) -> tuple[int, Any]:
        refused = {"uid": json.loads(body)["request"]["uid"], "allowed": False}
        refused["status"] = {"code": 403, "message": words}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return 200, {**review, "response": refused}

    with tempfile.TemporaryDirectory() as folder:
        pem = certificates.self_signed(Path(folder, "pem"), "localhost")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        with _server(refuse, context) as port:
            text = pem.read_bytes()
            yield f"https://localhost:{port}/", text[text.index(b"-----BEGIN CERTIFICATE") :]


@contextlib.contextmanager
def registry(state: str) -> Iterator[str]:
    """A registry of images within the block: its address. ``missing``: there is no such image; ``denied``:
    nobody may have it."""
    status, code, words = {
        "missing": (404, "MANIFEST_UNKNOWN", "manifest unknown"),
        "denied": (403, "DENIED", "requested access to the resource is denied"),
    }[state]

    def answer(path: str, body: bytes) -> tuple[int, Any]:
        if path == "/v2/":
            return 200, {}
        return status, {"errors": [{"code": code, "message": words}]}

    with _server(answer) as port:
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def _server(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server on this machine's loopback, encrypted with ``context``, within the block."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, told = answer(self.path.partition("?")[0], body)
            text = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_HEAD = do_POST = _answer  # noqa: N815  # names of the library

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
