"""Contexts of a trial that talk to a service in memory, without a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from core_service import FakeService, make_info

from determined.core._connection import Connection
from determined.core._context import Context, _trial_context
from determined.core._distributed import DummyDistributedContext
from determined.core._preempt import PreemptMode
from determined.core._reporter import Reporter
from determined.core._tensorboard import TensorboardMode
from determined.storage import build


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def connection(service: FakeService) -> Iterator[Connection]:
    connection = Connection(make_info(), httpx.MockTransport(service.handle))
    yield connection
    service.preempt.set()
    connection.close()


@pytest.fixture
def reporter(connection: Connection) -> Iterator[Reporter]:
    reporter = Reporter(connection, 7, 2, interval=0.01, patience=0.3)
    yield reporter
    # The test itself handles errors of the last calls.
    try:
        reporter.close()
    except BaseException as error:
        print("closing:", repr(error))


@pytest.fixture
def make_context(service: FakeService, tmp_path: Path) -> Iterator[Callable[..., Context]]:
    made: list[Context] = []

    def make(config: dict[str, Any] | None = None, **options: Any) -> Context:
        storage = {"type": "shared_fs", "host_path": str(tmp_path / "storage")}
        context = _trial_context(
            make_info(config),
            options.get("distributed") or DummyDistributedContext(),
            build(storage),
            options.get("preempt_mode", PreemptMode.WorkersAskChief),
            options.get("tensorboard_mode", TensorboardMode.AUTO),
            httpx.MockTransport(service.handle),
            options.get("storage_section"),
        )
        made.append(context)
        context.preempt.start()
        return context

    yield make
    service.preempt.set()
    for context in made:
        context.close(RuntimeError)  # logs instead of raising
