"""``python -m tests.kubernetes.standin FOLDER``: the stand-in as a process, until it is interrupted.

Prints the kubeconfig's path when it serves.
"""

from __future__ import annotations

import argparse
import functools
import signal
import threading
from pathlib import Path

from tests.kubernetes.standin.cluster import Cluster
from tests.kubernetes.standin.running import running


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.standin")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default="1.33", help="of Kubernetes (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--cpu", default="8", help="cores of a node (default: %(default)s)")
    parser.add_argument("--gpus", help="GPUs of a node (default: none)")
    parser.add_argument("--hollow", action="store_true", help="nodes that run nothing")
    parser.add_argument("--namespace", action="append", default=[])
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    done = threading.Event()
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: done.set())
    with running(asked.version, asked.folder) as standin:
        amounts = {"cpu": asked.cpu} | ({"nvidia.com/gpu": asked.gpus} if asked.gpus else {})
        for number in range(asked.nodes):
            name = f"node-{number}"
            add = functools.partial(Cluster.add_node, name=name, allocatable=amounts)
            standin.do(functools.partial(add, hollow=asked.hollow))
        for name in asked.namespace:
            standin.do(functools.partial(Cluster.add_namespace, name=name))
        print(standin.kubeconfig, flush=True)
        done.wait()


if __name__ == "__main__":
    main()
