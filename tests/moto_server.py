"""moto's S3 server, which keeps all in memory, with buckets that outlive its process.

``python -m tests.moto_server PORT FOLDER [SECONDS]``: for each bucket that the folder has a directory of,
every object that is put (in one piece) is a file in it, called by its key in percent encoding, before the
answer goes out; files that exist at the start are objects of the bucket. SECONDS: how long every PUT takes
longer, as if the server were far away. Beside a FOLDER there may be a file ``hold``: every PUT waits until it
is gone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import moto.server
from moto.s3.models import S3Backend, s3_backends

ACCOUNT = "123456789012"


def restore(folder: Path) -> None:
    backend = s3_backends[ACCOUNT]["aws"]
    for bucket in folder.iterdir():
        backend.create_bucket(bucket.name, "us-east-1")
        for file in bucket.iterdir():
            backend.put_object(bucket.name, unquote(file.name), file.read_bytes())


def remember(folder: Path, delay: float) -> None:
    put = S3Backend.put_object

    def put_object(self: Any, bucket: str, key: str, value: bytes, *args: Any, **more: Any) -> Any:
        time.sleep(delay)
        while (folder.parent / "hold").exists():
            time.sleep(0.02)
        if (folder / bucket).is_dir():
            (folder / bucket / quote(key, safe="")).write_bytes(value)
        return put(self, bucket, key, value, *args, **more)

    S3Backend.put_object = put_object  # type: ignore[method-assign]


if __name__ == "__main__":
    restore(Path(sys.argv[2]))
    remember(Path(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
    moto.server.main(["-H", "127.0.0.1", "-p", sys.argv[1]])
