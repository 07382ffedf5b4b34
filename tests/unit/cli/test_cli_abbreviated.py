"""The beginning of an id in place of the id: of checkpoints and of tasks."""

from __future__ import annotations

from typing import Any

import pytest

from determined.cli.arguments.abbreviated import expanded
from determined.cli.errors import CliError
from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService, checkpoint, experiment, trial

A = "abcdef12-2222-4333-8444-555555555555"
B = "abcdef13-2222-4333-8444-555555555555"


@pytest.fixture
def asked(service: FakeService) -> list[Any]:
    """Of which checkpoints a deletion was asked for."""
    service.experiments[1] = experiment()
    service.trials[1] = [trial(3)]
    service.checkpoints = [checkpoint(one, 3, 0.5) for one in (A, B)]
    service.routes[:0] = [("DELETE", r"/api/v1/checkpoints", lambda r: {"deletionId": None})]
    return service.bodies


def test_a_checkpoint_has_a_short_name(det: Det, service: FakeService, asked: list[Any]) -> None:
    assert A in det("c", "describe", "abcdef12").stdout
    assert det("c", "delete", "abcdef13,abcdef12", A, "-y").stderr == "deleted 2 checkpoints\n"
    assert asked[-1] == {"checkpointUuids": [B, A]}
    det("m", "register-version", "digits", "abcdef13-22")
    assert asked[-1]["checkpointUuid"] == B
    before = service.called("GET", "/api/v1/checkpoints")
    det("c", "describe", A)
    assert service.called("GET", "/api/v1/checkpoints") == before


@pytest.mark.parametrize(
    "command",
    [
        ["c", "describe"],
        ["c", "download"],
        ["c", "delete", "--yes"],
        ["c", "rm", "--yes"],
        ["t", "download", "3", "--uuid"],
        ["m", "register-version", "digits"],
    ],
)
def test_several_and_none(
    det: Det, service: FakeService, asked: list[Any], command: list[str]
) -> None:
    for word, words in {
        "abcd": f"'abcd' is the beginning of several IDs: {A}, {B}",
        "fedc": "no checkpoint has an ID that begins with 'fedc'",
        "abc": "'abc' is too short for a checkpoint: give its UUID, or at least the first 4 digits of it",
    }.items():
        refused = det(*command, word)
        assert (refused.exit_code, refused.stderr) == (1, f"error: {words}\n")
    assert not any("heckpoint" in str(body) for body in asked)


def test_ten_candidates_are_named(det: Det, service: FakeService) -> None:
    names = [f"abcdef12-2222-4333-8444-0000000000{number:02}" for number in range(12)]
    service.checkpoints = [checkpoint(one, 3, 0.5) for one in names]
    said = det("c", "describe", "abcdef12").stderr
    assert said.endswith(f"several IDs: {', '.join(names[:10])}, …\n")


def test_whole_ids_of_tasks_are_not_looked_up() -> None:
    """A trial's begins with the number of its experiment, and may be older than those that are listed."""

    def known() -> list[str]:
        raise AssertionError

    assert expanded([A, f"12.{B}", A], known, "task") == [A, f"12.{B}"]
    with pytest.raises(CliError, match="no task has an ID that begins with '12\\.abc'"):
        expanded(["12.abc"], lambda: [A, f"13.{A}"], "task")
