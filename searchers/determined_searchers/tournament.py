"""Several independent searches side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from determined_searchers.events import ExitReason
from determined_searchers.method import BracketStanding, SearchMethod
from determined_searchers.operations import Create, Operation


class _Share(Mapping[str, float]):
    """The items of ``whole`` that belong to one sub-search; looked up only if the sub-search uses them."""

    def __init__(self, whole: Mapping[str, float], owner: Mapping[str, int], index: int) -> None:
        self._whole, self._owner, self._index = whole, owner, index

    def __getitem__(self, request_id: str) -> float:
        if self._owner[request_id] != self._index:
            raise KeyError(request_id)
        return self._whole[request_id]

    def __iter__(self) -> Iterator[str]:
        return (trial for trial in self._whole if self._owner[trial] == self._index)

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
        parts = [
            search.progress(_Share(open_trials, self.owner, index))
            for index, search in enumerate(self.searches)
        ]
        return sum(parts) / len(parts)

    def standings(self) -> list[BracketStanding]:
        return [bracket for search in self.searches for bracket in search.standings()]

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
