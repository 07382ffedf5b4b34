"""Topics and the outbox's entities are named in one module each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import determined_service
from determined_service.base import topics
from determined_service.state import prefect_states

SERVICE = Path(determined_service.__file__).parent
HOMES = {SERVICE / "base/topics.py", SERVICE / "state/prefect_states.py"}

NAMED = [value for name, value in vars(topics).items() if name.isupper()]
PREFIXES = sorted(
    {
        made("").rstrip(":")
        for name, made in vars(topics).items()
        if callable(made) and made.__module__ == topics.__name__
    }
)
# Who announces topics or waits for them.
CALLS = {"notify", "subscribe", "poll", "wake"}
# A prefix at the beginning of a text, or of one in SQL.
BY_HAND = re.compile(rf"(^|')({'|'.join(PREFIXES)}):($|'|%)")
ANNOUNCED_BY_HAND = re.compile(r"pg_notify\([^)]*'")


def texts_by_hand(source: str) -> Iterator[str]:
    """Texts in the module that spell a topic or an entity."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            called = getattr(function, "attr", None) or getattr(function, "id", None)
            inside = [part for given in node.args for part in ast.walk(given)]
            if called in CALLS:
                yield from (part.value for part in inside if is_text(part) and part.value in NAMED)
        elif is_text(node) and (BY_HAND.search(node.value) or ANNOUNCED_BY_HAND.search(node.value)):
            yield node.value


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_the_topics() -> None:
    named = {
        "scheduler",
        "outbox",
        "reconciler",
        "deletions",
        "retrainings",
        "pipelines",
        "kept runs",
        "cluster",
        "cluster message",
        "roles",
        "policies",
        "service log",
    }
    assert named == set(NAMED)
    things = {
        "agent",
        "allocation",
        "committed",
        "experiment",
        "logs",
        "pipeline",
        "pool",
        "search",
        "task",
        "trial",
        "user",
    }
    assert things == set(PREFIXES)
    assert topics.trial(7) == "trial:7"


def test_no_topic_is_written_by_hand() -> None:
    wrong = {
        str(path.relative_to(SERVICE)): found
        for path in SERVICE.rglob("*.py")
        if path not in HOMES and (found := list(texts_by_hand(path.read_text())))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "source",
    [
        'change.notify(f"trial:{trial_id}")',
        'change.notify("scheduler")',
        'await poll(request, hub, ["outbox"], check)',
        "TEXT = \"SELECT pg_notify(:channel, 'outbox')\"",
        "TEXT = \"WHERE o.entity = 'experiment:' || e.id\"",
        "TEXT = \"WHERE o.entity LIKE 'trial:%'\"",
    ],
)
def test_one_written_by_hand_is_seen(source: str) -> None:
    assert list(texts_by_hand(source))


def test_an_entity_gives_its_id_back() -> None:
    assert prefect_states.experiment_of(prefect_states.experiment_entity(12)) == 12
    entity = prefect_states.task_entity("12.first:one")
    assert entity.removeprefix(prefect_states.TASK_ENTITY) == "12.first:one"
