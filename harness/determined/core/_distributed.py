"""The processes of one trial and how they talk to each other."""

from __future__ import annotations

import json
import os
from types import TracebackType
from typing import Any

from determined.constants import INTER_TRAIN_PROCESS_COMM_PORT_1, INTER_TRAIN_PROCESS_COMM_PORT_2


class DistributedContext:
    """Where this process stands among the workers of a trial.

    ``rank`` of ``size`` in all, ``local_rank`` of ``local_size`` on this machine, ``cross_rank`` of
    ``cross_size`` machines. ``chief_ip`` is the address of rank 0; ports are offset by ``port_offset``.

    Trials of more than one process are not in this release: ``size`` other than 1 raises
    NotImplementedError. All collective calls work, with one worker.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int,
        cross_rank: int,
        cross_size: int,
        chief_ip: str | None = None,
        pub_port: int = INTER_TRAIN_PROCESS_COMM_PORT_1,
        pull_port: int = INTER_TRAIN_PROCESS_COMM_PORT_2,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        ranks = {"rank": (rank, size), "local_rank": (local_rank, local_size)}
        ranks["cross_rank"] = (cross_rank, cross_size)
        for name, (number, count) in ranks.items():
            if not 0 <= number < count:
                raise ValueError(f"{name} must be between 0 and {count - 1}, found {number}")
        if size > 1:
            raise NotImplementedError(
                f"this trial has {size} processes; this release trains with one "
                "(resources.slots_per_trial: 1, and no launch layer that starts more)"
            )
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.cross_rank = cross_rank
        self.cross_size = cross_size
        self._closed = False

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """From the environment that torchrun sets. Raises RuntimeError outside of it."""
        return _from_environment(cls, "torch.distributed", chief_ip)

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """From the environment that deepspeed's launcher sets. Raises RuntimeError outside of it."""
        return _from_environment(cls, "deepspeed", chief_ip)

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """From an initialised horovod module, e.g. ``horovod.torch``."""
        return cls(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
            chief_ip=chief_ip,
        )

    @classmethod
    def from_tf_config(cls) -> tuple[DistributedContext, Any]:
        """(context, ``tf.distribute`` strategy) for the workers that TF_CONFIG lists, one without it."""
        import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        workers = max(len(config.get("cluster", {}).get("worker", [])), 1)
        rank = int(config.get("task", {}).get("index", 0))
        context = cls(
            rank=rank, size=workers, local_rank=0, local_size=1, cross_rank=rank, cross_size=workers
        )
        return context, tf.distribute.get_strategy()

    def close(self) -> None:
        """May be called twice; no collective call after it."""
        self._closed = True

    def __enter__(self) -> DistributedContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def get_rank(self) -> int:
        """This process among all; 0 is the chief."""
        return self.rank

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_size(self) -> int:
        return self.size

    def get_num_agents(self) -> int:
        return self.cross_size

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the distributed context is closed")

    def gather(self, stuff: Any) -> list[Any] | None:
        """The chief gets everybody's ``stuff`` in the order of ranks, the others None."""
        self._check_open()
        return [stuff]

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """:meth:`gather` among the workers of this machine."""
        self._check_open()
        return [stuff]

    def allgather(self, stuff: Any) -> list[Any]:
        """Everybody's ``stuff`` in the order of ranks."""
        self._check_open()
        return [stuff]

    def allgather_local(self, stuff: Any) -> list[Any]:
        """:meth:`allgather` among the workers of this machine."""
        self._check_open()
        return [stuff]

    def broadcast(self, stuff: Any) -> Any:
        """The chief's ``stuff``."""
        self._check_open()
        return stuff

    def broadcast_local(self, stuff: Any = None) -> Any:
        """The ``stuff`` of this machine's first worker."""
        self._check_open()
        return stuff


class DummyDistributedContext(DistributedContext):
    """One process, not distributed."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)


def _from_environment(
    cls: type[DistributedContext], launcher: str, chief_ip: str | None
) -> DistributedContext:
    names = {
        "rank": "RANK",
        "size": "WORLD_SIZE",
        "local_rank": "LOCAL_RANK",
        "local_size": "LOCAL_WORLD_SIZE",
    }
    missing = [variable for variable in names.values() if variable not in os.environ]
    if missing:
        raise RuntimeError(
            f"not started by {launcher}: {', '.join(missing)} not in the environment; "
            "use python3 -m determined.launch.torch_distributed (or leave out distributed=)"
        )
    found = {name: int(os.environ[variable]) for name, variable in names.items()}
    machines = max(found["size"] // max(found["local_size"], 1), 1)
    cross_rank = os.environ.get("GROUP_RANK") or os.environ.get("CROSS_RANK") or "0"
    return cls(
        rank=found["rank"],
        size=found["size"],
        local_rank=found["local_rank"],
        local_size=found["local_size"],
        cross_rank=int(cross_rank),
        cross_size=machines,
        chief_ip=chief_ip,
    )
