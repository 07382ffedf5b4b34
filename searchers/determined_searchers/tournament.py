"""Several searches side by side, none knowing of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from determined_searchers.events import ExitReason
from determined_searchers.method import SearchMethod
from determined_searchers.operations import Create, Operation


class Tournament(SearchMethod):
    """Each trial belongs to the sub-search that created it, and so do its events. All sub-searches
    draw from the one random stream; they begin in order. Progress is their mean. Subclasses say in
    ``from_config`` which searches."""

    def __init__(self, searches: Sequence[SearchMethod]) -> None:
        self.searches = list(searches)
        self.owner: dict[str, int] = {}

    @property
    def invalid_limit(self) -> int | None:
        limits = [search.invalid_limit for search in self.searches]
        return sum(limit for limit in limits if limit is not None) if any(limits) else None

    def initial_operations(self) -> list[Operation]:
        return [
            operation
            for index, search in enumerate(self.searches)
            for operation in self._own(index, search.initial_operations())
        ]

    def trial_created(self, request_id: str) -> list[Operation]:
        index = self.owner[request_id]
        return self._own(index, self.searches[index].trial_created(request_id))

    def validation_completed(self, request_id: str, metric: Any, length: int) -> list[Operation]:
        index = self.owner[request_id]
        search = self.searches[index]
        return self._own(index, search.validation_completed(request_id, metric, length))

    def trial_reported(
        self, request_id: str, time: float | None, metric: Any, step: int | None
    ) -> list[Operation]:
        index = self.owner[request_id]
        search = self.searches[index]
        return self._own(index, search.trial_reported(request_id, time, metric, step))

    def trial_progress(self, request_id: str, progress: float) -> list[Operation]:
        index = self.owner[request_id]
        return self._own(index, self.searches[index].trial_progress(request_id, progress))

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        index = self.owner[request_id]
        return self._own(index, self.searches[index].trial_exited(request_id, reason))

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        index = self.owner[request_id]
        return self._own(index, self.searches[index].trial_closed(request_id, exited))

    def progress(self, open_trials: Mapping[str, float]) -> float:
        shares: list[dict[str, float]] = [{} for _ in self.searches]
        for request_id, progress in open_trials.items():
            shares[self.owner[request_id]][request_id] = progress
        parts = [
            search.progress(share) for search, share in zip(self.searches, shares, strict=True)
        ]
        return sum(parts) / len(parts)

    def state(self) -> dict[str, Any]:
        return {
            "trial_table": [[request_id, index] for request_id, index in self.owner.items()],
            "sub_search_states": [search.state() for search in self.searches],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.owner = dict(state["trial_table"])
        for search, saved in zip(self.searches, state["sub_search_states"], strict=True):
            search.load(saved)

    def _own(self, index: int, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if isinstance(operation, Create):
                self.owner[operation.request_id] = index
        return operations
