"""A container that the engine fails to start is tried again, a few times, and then counts as failed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from determined_tasks.containers import ends, starting
from determined_tasks.containers.engine import EngineUnavailable
from determined_tasks.containers.starting import RETRY_SECONDS, CannotStart

docker = pytest.importorskip("docker")

BROKEN = (500, "failed to create shim task: the runtime did not answer")


class Engine:
    """Answers with these statuses and texts, one after the other; then it obeys every request."""

    base_url = "http+docker://localhost"
    api_version = "1.44"

    def __init__(self, *answers: tuple[int, str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def request(self, method: str, url: str, **_: Any) -> requests.Response:
        self.asked.append(f"{method} {url.rpartition('/')[2]}")
        answer = requests.Response()
        answer.status_code, words = self._answers.pop(0) if self._answers else (204, "")
        answer.url = url
        if words:
            answer._content = json.dumps({"message": words}).encode()
        elif answer.status_code == 204:
            answer._content = b""
        return answer

    def _raise_for_status(self, response: requests.Response) -> None:
        docker.api.client.APIClient._raise_for_status(None, response)


class Leg:
    """Its messages and its pauses; ``stops_at``: the rest in which it is stopped."""

    def __init__(self, stops_at: int | None = None) -> None:
        self.said: list[str] = []
        self.rests: list[float] = []
        self._stops_at = stops_at

    def rest(self, seconds: float) -> bool:
        self.rests.append(seconds)
        return len(self.rests) != self._stops_at

    def start(self, engine: Any) -> None:
        starting.patiently(lambda: starting.start(engine, "c1", {}), self.said.append, self.rest)


def test_it_is_started_at_once() -> None:
    engine, leg = Engine(), Leg()
    leg.start(engine)
    assert (engine.asked, leg.said) == (["POST create", "POST start"], [])


def test_leftovers_of_an_earlier_try_are_removed_first() -> None:
    engine, leg = Engine((201, ""), BROKEN, (409, "the name is in use")), Leg()
    leg.start(engine)
    assert engine.asked == [
        *("POST create", "POST start", "POST create"),
        *("DELETE c1", "POST create", "POST start"),
    ]
    (said,) = leg.said
    assert said == f"the container cannot be started: {BROKEN[1]}; it is tried again in 1 s"


def test_after_a_few_tries_with_growing_waits_it_has_failed() -> None:
    engine, leg = Engine(*[BROKEN] * 20), Leg()
    with pytest.raises(CannotStart, match="the runtime did not answer"):
        leg.start(engine)
    assert leg.rests == sorted(set(RETRY_SECONDS)) == list(RETRY_SECONDS)
    assert len(engine.asked) == len(leg.said) + 1 == len(RETRY_SECONDS) + 1
    ended = ends.not_started("the container cannot be started: x")
    assert str(ended) == "process exited with code 125: the container cannot be started: x"


def test_a_leg_that_is_stopped_does_not_wait() -> None:
    engine, leg = Engine(*[BROKEN] * 20), Leg(stops_at=2)
    with pytest.raises(CannotStart):
        leg.start(engine)
    assert len(engine.asked) == len(leg.rests) == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((400, "invalid mount config"), None),
        ((500, "exec: no such file or directory"), None),
        ((404, "network lab not found"), None),
        ((500, "could not select device driver"), "the engine cannot give the container its GPUs"),
    ],
)
def test_impossible_rights_are_refused_at_once(answer: tuple[int, str], reason: str | None) -> None:
    engine, leg = Engine(answer, *[answer] * 20), Leg()
    with pytest.raises(docker.errors.APIError if reason is None else CannotStart, match=reason):
        leg.start(engine)
    assert len(engine.asked) == (1 if reason is None else len(RETRY_SECONDS) + 1)


def test_an_engine_that_is_away_is_waited_for() -> None:
    answers: list[Exception | str] = [EngineUnavailable("it is away")] * 3 + ["client"]

    def connect() -> Exception | str:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    leg = Leg()
    assert starting.patiently(connect, leg.said.append, leg.rest) == "client"
    assert leg.said[0] == "it is away; it is tried again in 1 s"
    assert leg.rests == list(RETRY_SECONDS[:3])
