"""A search brought back from an older snapshot and the events after it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
import pytest

from determined.common.wire.search import Commit, EventItem
from determined_flows import recorded_search
from determined_flows.recorded_search import RecordedSearch
from determined_searchers import Event, SearcherError, create_searcher, simulate

CONFIG: dict[str, Any] = {
    "searcher": {
        "name": "adaptive_asha",
        "metric": "loss",
        "max_length": 9,
        "divisor": 3,
        "max_trials": 300,
        "max_concurrent_trials": 8,
    },
    "hyperparameters": {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}},
    "reproducibility": {"experiment_seed": 3},
}


DRIVER = uuid4()


def recorded_events() -> list[EventItem]:
    """The service's log of a whole search: JSON as the database gives it back."""
    events: list[Event] = []

    def observe(searcher: Any, event: Event | None, operations: Any) -> None:
        if event is not None:
            events.append(event)

    simulate(CONFIG, observe=observe)
    return [
        EventItem(number, orjson.loads(orjson.dumps(event.to_json())))
        for number, event in enumerate(events, 1)
    ]


EVENTS = recorded_events()


class Store:
    """The service's record of the commits."""

    def __init__(self) -> None:
        self.snapshot: Any = None
        self.snapshot_event_id = -1
        self.digest: str | None = None
        self.committed = -1
        self.snapshots: list[int] = []
        self.operations: list[Any] = []

    def commit(self, commit: Commit) -> None:
        body = orjson.loads(orjson.dumps(commit.to_json()))
        if body["snapshot"] is not None:
            self.snapshot, self.snapshot_event_id = body["snapshot"], body["last_event_id"]
            self.snapshots.append(body["last_event_id"])
        self.digest, self.committed = body["operations_digest"], body["last_event_id"]
        self.operations += body["operations"]

    def restored(self, config: dict[str, Any] = CONFIG) -> RecordedSearch:
        search = RecordedSearch(config, self.snapshot, self.snapshot_event_id)
        if search.last_event_id < 0 <= self.committed:
            search.begin()
        search.replay(EVENTS[search.last_event_id : self.committed])
        search.check(self.digest)
        return search


def drive(restart_every: int | None, batch: int) -> Store:
    store = Store()
    search = store.restored()
    store.commit(search.commit(DRIVER, search.begin()))
    commits = 0
    while store.committed < len(EVENTS):
        events = EVENTS[store.committed : store.committed + batch]
        store.commit(search.commit(DRIVER, search.handle(events)))
        commits += 1
        if restart_every and commits % restart_every == 0:
            search = store.restored()
    return store


@pytest.mark.parametrize(("restart_every", "batch"), [(1, 7), (3, 40), (50, 1)])
def test_restarts_change_no_operation(restart_every: int, batch: int) -> None:
    assert drive(restart_every, batch).operations == drive(None, 1).operations


def test_a_small_search_needs_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_search, "SNAPSHOT_EVENTS", len(EVENTS) + 1)
    assert drive(20, 10).snapshots == []


def test_snapshots_become_rarer_as_they_grow() -> None:
    store = drive(None, 1)
    assert store.snapshots[0] == recorded_search.SNAPSHOT_EVENTS
    pairs = zip(store.snapshots, store.snapshots[1:], strict=False)
    gaps = [later - earlier for earlier, later in pairs]
    assert gaps == sorted(gaps)
    assert gaps[-1] > recorded_search.SNAPSHOT_EVENTS
    assert len(store.snapshots) < len(EVENTS) / recorded_search.SNAPSHOT_EVENTS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reproducibility": {"experiment_seed": 4}}, "to event 50, asks for other operations"),
        (
            {"searcher": {**CONFIG["searcher"], "max_length": 27}},
            "fails .*was expected to report length",
        ),
    ],
)
def test_a_changed_search_is_noticed(change: dict[str, Any], words: str) -> None:
    store = Store()
    search = store.restored()
    store.commit(search.commit(DRIVER, search.begin()))
    store.commit(search.commit(DRIVER, search.handle(EVENTS[:50])))
    with pytest.raises(SearcherError, match=words):
        store.restored({**CONFIG, **change})


def test_an_unknown_digest_is_not_a_change() -> None:
    """Of a search that an earlier release committed."""
    search = RecordedSearch(CONFIG)
    search.begin()
    search.check(None)


def test_the_log_is_that_of_the_plain_searcher() -> None:
    searcher, search = create_searcher(CONFIG), RecordedSearch(CONFIG)
    assert search.begin() == searcher.initial_operations()
    assert search.last_event_id == 0
    search.handle(EVENTS)
    assert search.last_event_id == len(EVENTS)
    assert search.commit(DRIVER, []).progress == 1.0
