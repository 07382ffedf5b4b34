"""The meeting point of a gang's workers, and the environment that each worker gets."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from determined._info import ClusterInfo
from determined.constants import COMM_PORT_VARIABLE
from determined.core import _collective
from determined.core._connection import Connection
from determined.core._gang import all_gather
from determined.launch import _ports
from determined.launch._machines import Machines

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Meeting:
    """The gang has ``size`` workers on ``machine_count`` machines. ``count`` of them are on this machine,
    whose number is ``machine``; their ranks begin with ``first_rank``.

    ``chief``: the address of the first machine. ``store_port`` and ``comm_port``: ports of that machine
    that only this gang uses; there ``sockets`` hold them. ``interface``: the network interface of this
    machine by which the others reach it.
    """

    count: int
    chief: str
    store_port: int
    comm_port: int
    sockets: tuple[socket.socket, ...] = ()
    machine: int = 0
    machine_count: int = 1
    first_rank: int = 0
    size: int = 0
    machines: Machines | None = None
    interface: str | None = None

    @classmethod
    def arrange(cls, count: int) -> Meeting:
        """For ``count`` workers on this machine alone."""
        store, comm = _ports.listen(), _ports.reserve()
        ports = (_ports.port_of(store), _ports.port_of(comm))
        return cls(count, LOOPBACK, *ports, sockets=(store, comm), size=count)

    @classmethod
    def across(cls, count: int, info: ClusterInfo) -> Meeting:
        """For ``count`` workers on this machine, one of several of the trial; waits for the other machines'
        launchers.

        Raises APIException, TimeoutError or ConnectionError when they do not come.
        """
        machine, addresses = info.container_rank, info.container_addrs
        sockets: tuple[socket.socket, ...] = ()
        if machine == 0:
            sockets = (_ports.listen(""), _ports.reserve(""), _ports.listen(""))
        mine = [machine, count, [_ports.port_of(one) for one in sockets]]
        connection = Connection(info)
        try:
            everybody = all_gather(connection, info.allocation_id, mine, len(addresses))
        finally:
            connection.close()
        counts = [its_count for _, its_count, _ in sorted(everybody)]
        store, comm, link = sorted(everybody)[0][2]
        key = _collective.secret()
        if machine == 0:
            group = _collective.Group.lead(sockets[2], len(addresses), key)
        else:
            group = _collective.Group.join((addresses[0], link), machine, key)
        return cls(
            count,
            addresses[0],
            store,
            comm,
            sockets=sockets,
            machine=machine,
            machine_count=len(addresses),
            first_rank=sum(counts[:machine]),
            size=sum(counts),
            machines=Machines(group.peers, addresses),
            interface=_interface_of(addresses[machine]),
        )

    def environment(self, local: int) -> dict[str, str]:
        """The whole environment of worker ``local`` of this machine: this process's environment, and the
        variables that torchrun sets.
        """
        rank = self.first_rank + local
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "GROUP_RANK": self.machine,
            "ROLE_RANK": rank,
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.count,
            "GROUP_WORLD_SIZE": self.machine_count,
            "ROLE_WORLD_SIZE": self.size,
            "MASTER_PORT": self.store_port,
            COMM_PORT_VARIABLE: self.comm_port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        words = {
            "ROLE_NAME": "default",
            "MASTER_ADDR": self.chief,
            "DET_CHIEF_IP": self.chief,
            "USE_TORCH_DISTRIBUTED": "True",
            "TORCHELASTIC_RUN_ID": os.environ.get("DET_ALLOCATION_ID", "none"),
            # Workers are clients of the launcher's store.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        env = {**os.environ, **words, **{name: str(value) for name, value in numbers.items()}}
        if self.interface is not None:
            # Otherwise Gloo takes the interface of the host name's address.
            env.setdefault("GLOO_SOCKET_IFNAME", self.interface)
        env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        return env

    @contextlib.contextmanager
    def store(self) -> Iterator[None]:
        """Serves torch's store for the block, on the first machine.

        Call it after the workers are forked, because it starts a thread. Until then the workers wait in the
        socket's queue.
        """
        if self.machine != 0:
            yield
            return
        import torch.distributed

        served = torch.distributed.TCPStore(
            self.chief,
            self.store_port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self.sockets[0].detach(),
        )
        try:
            yield
        finally:
            del served


def _interface_of(address: str) -> str | None:
    for name, found in psutil.net_if_addrs().items():
        if any(one.address == address for one in found):
            return name
    return None
