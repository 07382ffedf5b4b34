"""A registry of one image, which may ask for a password (the protocol's version 2)."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry:
    """Serves ``<address>/own:1``, whose only file is ``/hello``. ``login``: ``user:password``."""

    def __init__(self, login: str | None = None) -> None:
        layer = _layer()
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [_digest(gzip.decompress(layer))]},
            }
        ).encode()
        types = (
            "application/vnd.docker.container.image.v1+json",
            ("application/vnd.docker.image.rootfs.diff.tar.gzip"),
        )
        described = [
            {"mediaType": kind, "size": len(data), "digest": _digest(data)}
            for kind, data in zip(types, (config, layer), strict=True)
        ]
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": described[0],
                "layers": described[1:],
            }
        ).encode()
        self.files = {
            "/v2/": (b"{}", "application/json"),
            **{
                f"/v2/own/manifests/{name}": (manifest, MANIFEST)
                for name in ("1", _digest(manifest))
            },
            **{
                f"/v2/own/blobs/{_digest(data)}": (data, "application/octet-stream")
                for data in (config, layer)
            },
        }
        self.wanted = login and f"Basic {base64.b64encode(login.encode()).decode()}"
        self.pulls = 0
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry._answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        extra: dict[str, str] = {}
        if self.wanted and handler.headers.get("Authorization") != self.wanted:
            status, code = 401, "UNAUTHORIZED"
            extra["Www-Authenticate"] = 'Basic realm="tests"'
        elif handler.path in self.files:
            status, code = 200, ""
        else:
            status, code = 404, "MANIFEST_UNKNOWN"
        body, kind = self.files.get(handler.path, (b"", ""))
        if status != 200:
            message = code.lower().replace("_", " ")
            errors = [{"code": code, "message": message, "detail": handler.path}]
            body, kind = json.dumps({"errors": errors}).encode(), "application/json"
        elif "/blobs/" in handler.path:
            self.pulls += 1
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Content-Type", kind)
        handler.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        if kind == MANIFEST:
            handler.send_header("Docker-Content-Digest", _digest(body))
        for name, value in extra.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body)


def _layer() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        info = tarfile.TarInfo("hello")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    return gzip.compress(content.getvalue(), mtime=0)
