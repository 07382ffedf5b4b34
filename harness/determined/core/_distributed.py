"""The processes of one trial and how they talk to each other."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

from determined.constants import (
    COMM_PORT_VARIABLE,
    INTER_TRAIN_PROCESS_COMM_PORT_1,
    INTER_TRAIN_PROCESS_COMM_PORT_2,
)
from determined.core import _collective
from determined.core._collective import Address, Group


class DistributedContext:
    """The position of this process among a trial's workers, and the calls that all workers make together.

    ``rank`` of ``size`` in all, ``local_rank`` of ``local_size`` on this machine, ``cross_rank`` of
    ``cross_size`` machines. ``chief_ip``: the address of rank 0's machine, needed for several machines; the
    workers meet there at port ``pub_port`` + ``port_offset``. On one machine the workers meet at a Unix
    socket with that number in its name, or at the port with ``force_tcp``. ``pull_port`` has no effect.

    Returns when all workers are connected. Raises ValueError for inconsistent numbers, TimeoutError when a
    worker is missing after ten minutes, OSError when the port or socket is taken.

    Every worker makes the same calls in the same order. They raise errors.WorkerLost when a worker
    has gone, RuntimeError when workers do not make the same call or the context is closed.
    Objects are pickled.
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
        if cross_size > 1 and chief_ip is None:
            raise ValueError(
                f"workers on {cross_size} machines need chief_ip, the address of rank 0's machine"
            )
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.cross_rank = cross_rank
        self.cross_size = cross_size
        self._closed = False
        self._chief_ip = chief_ip
        self._twins: list[DistributedContext] = []
        self._group = self._local = Group(0, {})
        if size > 1:
            port = pub_port + port_offset
            key = _collective.secret()
            address = self._meeting_place(chief_ip, port, force_tcp, key)
            if rank == 0:
                self._group = Group.lead(_collective.listen(address), size, key)
            else:
                self._group = Group.join(address, rank, key)
            self._local = self._meet_locally(key)

    def _meeting_place(
        self, chief_ip: str | None, port: int, force_tcp: bool, key: bytes
    ) -> Address:
        if self.cross_size > 1:
            assert chief_ip is not None
            return ("" if self.rank == 0 else chief_ip, port)
        if force_tcp or not _collective.has_abstract_sockets():
            return ("127.0.0.1", port)
        # In no directory and at no port: jobs with other keys do not meet there.
        return f"\0determined-{port}-{key.hex()[:32]}"

    def _meet_locally(self, key: bytes) -> Group:
        """The group of this machine's workers."""
        mine = None
        if self.local_rank == 0 and self.local_size > 1 and self.local_size < self.size:
            mine = _collective.listen(("127.0.0.1", 0))
        here = (self.cross_rank, self.local_rank, None if mine is None else mine.getsockname())
        everybody = self._group.allgather("meeting", here)
        if self.local_size == 1:
            return Group(0, {})
        if self.local_size == self.size:
            return self._group
        if mine is not None:
            return Group.lead(mine, self.local_size, key)
        address = next(
            where for machine, rank, where in everybody if (machine, rank) == (self.cross_rank, 0)
        )
        return Group.join(tuple(address), self.local_rank, key)

    def twin(self) -> DistributedContext:
        """A context of the same workers for calls that another thread makes meanwhile: its connections are
        separate. All workers call this together. It is closed with this context, and has no calls among the
        workers of one machine. Raises OSError, TimeoutError.
        """
        self._check_open()
        twin = copy.copy(self)
        twin._twins = []
        twin._group = twin._local = Group(0, {})
        if self.size > 1:
            key, listener = _collective.secret(), None
            if self.rank == 0:
                host = "127.0.0.1" if self.cross_size == 1 else ""
                listener = _collective.listen((host, 0))
                port = self.broadcast(listener.getsockname()[1])
                twin._group = Group.lead(listener, self.size, key)
            else:
                port = self.broadcast(None)
                host = "127.0.0.1" if self.cross_size == 1 else str(self._chief_ip)
                twin._group = Group.join((host, port), self.rank, key)
        self._twins.append(twin)
        return twin

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
        """(context, ``tf.distribute`` strategy) for the workers that TF_CONFIG lists; without TF_CONFIG
        there is one worker.
        """
        import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        listed = config.get("cluster", {}).get("worker", [])
        workers = max(len(listed), 1)
        rank = int(config.get("task", {}).get("index", 0))
        context = cls(
            rank=rank,
            size=workers,
            local_rank=0,
            local_size=1,
            cross_rank=rank,
            cross_size=workers,
            chief_ip=listed[0].rpartition(":")[0] if listed else None,
        )
        return context, tf.distribute.get_strategy()

    def close(self) -> None:
        """May be called twice; no collective call after it."""
        self._closed = True
        for twin in self._twins:
            twin.close()
        self._local.close()
        self._group.close()

    def __enter__(self) -> DistributedContext:
        return self

    def __exit__(self, *_: object) -> None:
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
        return self._group.gather("gather", stuff)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """:meth:`gather` among the workers of this machine."""
        self._check_open()
        return self._local.gather("gather_local", stuff)

    def allgather(self, stuff: Any) -> list[Any]:
        """Everybody's ``stuff`` in the order of ranks."""
        self._check_open()
        return self._group.allgather("allgather", stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """:meth:`allgather` among the workers of this machine."""
        self._check_open()
        return self._local.allgather("allgather_local", stuff)

    def broadcast(self, stuff: Any) -> Any:
        """The chief's ``stuff``."""
        self._check_open()
        return self._group.broadcast("broadcast", stuff)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """The ``stuff`` of this machine's first worker."""
        self._check_open()
        return self._local.broadcast("broadcast_local", stuff)


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
    if "LOCAL_SIZE" in os.environ and "LOCAL_WORLD_SIZE" not in os.environ:
        names["local_size"] = "LOCAL_SIZE"  # deepspeed's name for it
    missing = [variable for variable in names.values() if variable not in os.environ]
    if missing:
        raise RuntimeError(
            f"not started by {launcher}: {', '.join(missing)} missing in the environment; "
            "use python3 -m determined.launch.torch_distributed (or leave out distributed=)"
        )
    found = {name: int(os.environ[variable]) for name, variable in names.items()}
    # Not by division where the launcher says it: machines need not have as many workers each.
    machines = os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("CROSS_SIZE")
    if machines is None:
        machines = str(max(found["size"] // max(found["local_size"], 1), 1))
    cross_rank = os.environ.get("GROUP_RANK") or os.environ.get("CROSS_RANK") or "0"
    return cls(
        rank=found["rank"],
        size=found["size"],
        local_rank=found["local_rank"],
        local_size=found["local_size"],
        cross_rank=int(cross_rank),
        cross_size=int(machines),
        chief_ip=chief_ip or os.environ.get("MASTER_ADDR"),
        # This trial's own; others may be on the machine.
        pub_port=int(os.environ.get(COMM_PORT_VARIABLE) or INTER_TRAIN_PROCESS_COMM_PORT_1),
    )
