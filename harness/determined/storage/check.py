"""``python -m determined.storage.check``: whether a storage can be written, read and deleted from, from here.

A separate process: a server that is away must not hold its caller up for longer than that wants to wait, and
clients of clouds are large. The ``checkpoint_storage`` section comes as JSON on standard input, because it
may hold keys. Exit code 1: it cannot, and the one line on standard output says why.
"""

from __future__ import annotations

import json
import sys

from determined import errors
from determined.storage import build


def main() -> int:
    try:
        build(json.load(sys.stdin)).validate()
    except (errors.StorageError, OSError) as error:
        print(str(error).splitlines()[0])
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
