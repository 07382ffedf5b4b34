"""``python contain.py ORDER``: becomes a container's main process, in the namespaces that `unshare` made.

ORDER is the JSON of :class:`tests.kubernetes.standin.container.Order`. Descriptor 3 is told why the program
cannot run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from determined_tasks.mounts import Bind, Mounts

TOLD = 3


def main(path: str) -> None:
    order = json.loads(Path(path).read_text())
    os.set_inheritable(TOLD, False)
    binds = [
        Bind(one["source"], one["target"], one["read_only"], "rprivate", "")
        for one in order["binds"]
    ]
    # What lies below another mount comes after it.
    binds.sort(key=lambda bind: bind.target.count("/"))
    stage = Path(order["stage"])
    # It gets a second path, and so may not be one that is there in the container only.
    unused = stage.with_name("unused")
    unused.mkdir()
    mounts = Mounts(unused, stage, tuple(binds), order["shm_bytes"])
    mounts.require(None, "stand-in")
    mounts.enter(None, Path(order["cwd"]))
    try:
        if order["gid"] is not None or order["uid"] is not None:
            os.setgroups(order["groups"])
        if order["gid"] is not None:
            os.setgid(order["gid"])
        if order["uid"] is not None:
            os.setuid(order["uid"])
        os.execvpe(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        os.write(TOLD, f'exec: "{order["argv"][0]}": {error.strerror}'.encode())
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1])
