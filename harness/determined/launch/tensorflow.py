"""``python3 -m determined.launch.tensorflow [--port PORT --] script.py args…``

Runs the script once per machine of the trial; with several machines ``TF_CONFIG`` tells each who the
workers are (``tf.distribute.MultiWorkerMirroredStrategy``), and lines have their rank in front.
"""

from __future__ import annotations

import json
import os
import sys

from determined._info import get_cluster_info
from determined.launch import _command
from determined.launch._fail import fail

USAGE = "usage: python3 -m determined.launch.tensorflow [--port PORT --] SCRIPT [ARGS...]"
PORT = 29400


def worker_config(addresses: list[str], rank: int, port: int) -> str:
    """``TF_CONFIG`` of machine ``rank``."""
    workers = [f"{address}:{port}" for address in addresses]
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def main(arguments: list[str]) -> None:
    """Raises SystemExit."""
    options, script = _command.split_arguments(arguments)
    port = str(PORT)
    if options:
        name, _, port = "=".join(options).partition("=")
        if name != "--port" or not port.isdecimal():
            fail(
                f"--port takes a number and is the only option; found {' '.join(options)}; {USAGE}"
            )
    if not script or script[0].startswith("-"):
        fail(f"no script to launch; {USAGE}")
    info = get_cluster_info()
    if info is None:
        fail(
            "determined.launch.tensorflow starts trials on a cluster; off it, run the script itself"
        )
    os.environ["DET_CHIEF_IP"] = info.container_addrs[0]
    if len(info.container_addrs) == 1:
        _command.become([sys.executable, *script] if script[0].endswith(".py") else script)
    rank = info.container_rank
    os.environ["TF_CONFIG"] = worker_config(info.container_addrs, rank, int(port))
    _command.become(_command.wrapped(str(rank), script))


if __name__ == "__main__":
    main(sys.argv[1:])
