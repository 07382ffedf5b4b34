"""Workers of one trial, played by threads."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from determined.core._distributed import DistributedContext


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def together(
    work: Callable[[DistributedContext], Any], local: int, machines: int = 1, **options: Any
) -> list[Any]:
    """The results, or errors, of ``work`` in each worker."""
    size = local * machines
    if machines > 1:
        options = {"chief_ip": "127.0.0.1", "pub_port": free_port(), **options}

    def worker(rank: int) -> Any:
        try:
            with DistributedContext(
                rank=rank,
                size=size,
                local_rank=rank % local,
                local_size=local,
                cross_rank=rank // local,
                cross_size=machines,
                **options,
            ) as dist:
                return work(dist)
        except (Exception, SystemExit) as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(worker, range(size)))
