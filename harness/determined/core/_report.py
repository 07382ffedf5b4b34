"""One report of metrics."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple


class Report(NamedTuple):
    """A frozen report; ``time`` in epoch seconds, ``size`` the number of values in it."""

    group: str
    steps_completed: int
    metrics: dict[str, Any]
    batch_metrics: list[dict[str, Any]] | None
    time: float
    size: int

    def head(self) -> bytes:
        """The head of a report whose encoded form waits in a file."""
        import orjson

        return orjson.dumps([self.group, self.steps_completed])

    @classmethod
    def of_head(cls, head: bytes) -> Report:
        """A report without metrics in memory; only its encoded form has them."""
        import orjson

        group, steps_completed = orjson.loads(head)
        return cls(group, steps_completed, {}, None, 0.0, 0)

    def encode(self) -> bytes:
        """The report as JSON, as the service expects it."""
        import orjson

        body = {
            "group": self.group,
            "steps_completed": self.steps_completed,
            "metrics": self.metrics,
            "end_time": datetime.datetime.fromtimestamp(self.time, datetime.UTC),
        }
        if self.batch_metrics is not None:
            body["batch_metrics"] = self.batch_metrics
        return orjson.dumps(body)
