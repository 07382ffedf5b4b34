"""A trial of one process and its service in memory: it can be stopped and begun again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from determined import core
from determined.core._context import _trial_context
from determined.core._tensorboard import TensorboardMode
from determined.storage import build
from tests.unit.core.core_service import FakeService, make_info


class OneTrial:
    """``with trial.leg(searcher) as core_context:`` is one start of its process."""

    def __init__(self, folder: Path) -> None:
        self.service = FakeService()
        self.folder = folder
        self.url = "http://service"
        self.transport: httpx.BaseTransport = httpx.MockTransport(self.service.handle)

    def distributed(self) -> core.DistributedContext:
        """That of a leg."""
        return core.DummyDistributedContext()

    @contextlib.contextmanager
    def leg(
        self, searcher: dict[str, Any] | None = None, latest: str | None = None
    ) -> Iterator[core.Context]:
        """Goes on from the last stored checkpoint, or from ``latest``."""
        dist = self.distributed()
        info = make_info({"searcher": searcher or {"name": "single", "metric": "eval_loss"}})
        last = latest or next(reversed(self.service.checkpoints), None)
        info.master_url, info._latest_checkpoint = dist.broadcast((self.url, last))
        self.service.preempt = threading.Event()
        with _trial_context(
            info,
            dist,
            build({"type": "shared_fs", "host_path": str(self.folder)}),
            core.PreemptMode.WorkersAskChief,
            TensorboardMode.AUTO,
            self.transport,
        ) as context:
            try:
                yield context
            finally:
                self.service.preempt.set()

    def preempt(self, context: core.Context) -> None:
        """Returns when the leg's next ``should_preempt()`` is True; one must have been asked before."""
        self.service.preempt.set()
        assert context.preempt._watcher is not None
        context.preempt._watcher._thread.join()

    def reports(self, group: str) -> dict[int, dict[str, Any]]:
        """Metrics by steps completed; fails when a step was reported twice."""
        found = [report for report in self.service.reports if report["group"] == group]
        by_step = {report["steps_completed"]: report["metrics"] for report in found}
        assert len(by_step) == len(found), [report["steps_completed"] for report in found]
        return by_step

    def checkpoints(self) -> list[int]:
        """Their steps, in the order of storing."""
        stored = self.service.checkpoints.values()
        return [checkpoint["metadata"]["steps_completed"] for checkpoint in stored]
