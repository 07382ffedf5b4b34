"""Messages between service, agents and flows: reading, refusals, cost."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from determined.common.wire import agents, deletions, legs, paths, prefect, search, version
from determined.common.wire.message import Message, WireError
from tests.waiting import TIMEOUT_S

ROOT = Path(__file__).parents[3]
SESSION = uuid4()
SPEC = {
    "allocation_id": "7.abc.1",
    "task_id": "7.abc",
    "entrypoint": ["python3", "train.py"],
    "session_token": "v2.token",
    "cluster_id": "c",
}
# The messages that the release before this package sent and read.
NAMES: dict[type[Message], set[str]] = {
    agents.Registration: {"session", "resource_pool", "host", "version", "slot_type", "slots"}
    | {"allocations"},
    agents.Registered: {"cluster_id", "heartbeat_s", "kill"},
    agents.WorkRequest: {"session", "running", "prefect_poll_seq", "timeout_s"},
    agents.Work: {"launch", "kill", "prefect_poll_seq"},
    agents.TrialClaim: {"flow_run_id", "agent_id"},
    legs.LegSpec: {"allocation_id", "task_id", "task_type", "experiment_id", "trial_id", "run_id"}
    | {"flow_run_id", "slot_ids", "resource_pool", "entrypoint", "model_def_hash", "config"}
    | {"hparams", "trial_seed", "latest_checkpoint", "steps_completed", "checkpoint"}
    | {"session_token", "cluster_id", "cluster_name", "owner", "env", "environment_variables"},
    legs.CheckpointFacts: {"resources", "checksums", "storage"},
    legs.Started: {"pid", "host"},
    legs.Exited: {"exit_code", "signal", "kind", "reason"},
    legs.DamagedCheckpoint: {"uuid", "reason"},
    legs.StartFrom: {"latest_checkpoint", "steps_completed", "checkpoint"},
    search.Attachment: {"driver", "flow_run_id"},
    search.Attached: {"experiment", "snapshot", "snapshot_event_id", "operations_digest"}
    | {"committed_event_id", "trials_without_run"},
    search.ExperimentFacts: {"id", "state", "reason", "name", "config", "resource_pool"}
    | {"flow_run_id"},
    search.TrialRef: {"trial_id", "request_id", "name", "hparams"},
    search.Events: {"events", "state", "reason", "ended"},
    search.EventItem: {"id", "event"},
    search.Followed: {"trials", "state", "reason", "ended"},
    search.Commit: {"driver", "last_event_id", "operations", "snapshot", "operations_digest"}
    | {"progress"},
    search.Committed: {"trials", "state", "duplicate"},
    search.SearchFailure: {"driver", "error"},
    search.TrialRun: {"flow_run_id"},
    deletions.DeletionWork: {"kind", "state", "experiment_id", "experiment_has_ended", "globs"}
    | {"places"},
    deletions.StorageDeletions: {"storage", "checkpoints", "unfinished_of", "discard"},
    deletions.Deleted: {"left"},
    deletions.DeletionEnd: {"error"},
    deletions.CheckpointNames: {"uuids"},
}


@pytest.mark.parametrize("message", NAMES, ids=lambda message: message.__name__)
def test_no_field_of_the_release_before_is_gone(message: type[Message]) -> None:
    fields: Any = dataclasses.fields(message)  # type: ignore[arg-type]
    assert NAMES[message] <= {item.name for item in fields}


def test_a_message_comes_back_from_json_as_it_was() -> None:
    spec = legs.LegSpec.from_json(
        {**SPEC, "flow_run_id": str(SESSION), "checkpoint": {"resources": {"a": 1}}}
    )
    given = agents.Work([spec], ["7.abc.2"], 3)
    for text in (json.dumps(given.to_json()), orjson.dumps(given)):
        assert agents.Work.from_json(json.loads(text)) == given
    assert given.launch[0].flow_run_id == SESSION
    assert given.launch[0].checkpoint == legs.CheckpointFacts({"a": 1})


def test_new_fields_are_ignored_and_missing_ones_have_defaults() -> None:
    found = legs.LegSpec.from_json({**SPEC, "fragment": 1})
    assert (found.task_type, found.run_id, found.checkpoint) == ("TRIAL", 1, None)
    assert agents.Registration.from_json({"session": str(SESSION)}).wire == 0


@pytest.mark.parametrize(
    ("message", "data", "words"),
    [
        (legs.LegSpec, {"task_id": "t"}, "Object missing required field `allocation_id`"),
        (
            legs.LegSpec,
            {**SPEC, "entrypoint": 3},
            r"Expected `str \| array`, got `int` - at `\$.entrypoint`",
        ),
        (legs.LegSpec, {**SPEC, "run_id": True}, r"Expected `int`, got `bool` - at `\$.run_id`"),
        (
            legs.LegSpec,
            {**SPEC, "slot_ids": [0, "b"]},
            r"Expected `int`, got `str` - at `\$.slot_ids\[1\]`",
        ),
        (
            legs.LegSpec,
            {**SPEC, "checkpoint": {}},
            r"Object missing .* `resources` - at `\$.checkpoint`",
        ),
        (legs.Exited, {"kind": "fled"}, r"Invalid enum value 'fled' - at `\$.kind`"),
        (search.TrialRun, {"flow_run_id": "x"}, r"Invalid UUID - at `\$.flow_run_id`"),
        (deletions.Deleted, {"left": {"x": {}}}, r"Invalid UUID - at `key` in `\$.left`"),
        (agents.Work, [], "Expected `object`, got `array`"),
    ],
)
def test_the_wrong_type_is_named(message: type[Message], data: Any, words: str) -> None:
    with pytest.raises(WireError, match=f"^{words}"):
        message.from_json(data)


def test_keys_that_are_not_text_become_text() -> None:
    uuid = UUID(int=7)
    assert deletions.Deleted({uuid: {"a": 1}}).to_json() == {"left": {str(uuid): {"a": 1}}}


def test_versions_that_are_understood() -> None:
    for number in range(version.OLDEST, version.VERSION + 1):
        assert version.refusal("a1", number, "0.1.0") is None
    assert version.OLDEST <= version.VERSION - 1, "one release behind is promised"


def test_an_old_version_is_told_to_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "OLDEST", 1)
    old = version.refusal("a1", 0, "0.0.9")
    assert old is not None
    assert "agent a1 runs release 0.0.9, too old for this service" in old
    assert f"install determined-prefect {version.__version__} on the agent's machine" in old
    new = version.refusal("a1", version.VERSION + 1, "")
    assert new is not None
    assert "agent a1 runs another release, newer than this service" in new
    assert "upgrade the service first" in new


# Written in one place; elsewhere only in words.
WORDS = {"AwaitingSlots", "checkpoint-gc/checkpoint-gc", "experiment/experiment", "trial/trial"}
WORDS |= {"retrain/retrain", "pipeline/pipeline"}
WORDS |= {paths.RUN_COOKIE, prefect.EXPERIMENT_ENTRYPOINT}
PACKAGES = "service/determined_service tasks/determined_tasks flows/determined_flows"
PACKAGES += " deployments/determined_deployments harness/determined"


@pytest.mark.parametrize("package", PACKAGES.split())
def test_no_address_or_name_of_the_wire_is_written_by_hand(package: str) -> None:
    wrong = []
    for path in (ROOT / package).rglob("*.py"):
        if path.is_relative_to(ROOT / "harness/determined/common/wire"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                by_hand = node.value.startswith(f"{paths.PREFIX}/") or node.value in WORDS
                wrong += [f"{path.relative_to(ROOT)}:{node.lineno}"] if by_hand else []
    assert wrong == []


def loaded(*modules: str) -> list[str]:
    code = f"import sys, {', '.join(modules)}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    return done.stdout.split()


def test_the_package_imports_nothing_that_costs() -> None:
    every = [module.__name__ for module in (agents, deletions, legs, paths, search, version)]
    found = loaded(*every)
    heavy = {"pydantic", "orjson", "httpx", "prefect", "sqlalchemy", "fastapi", "asyncio"}
    assert heavy.isdisjoint(found)
    assert "determined.common.api" not in found


def test_a_training_process_imports_no_messages() -> None:
    found = loaded("determined.core")
    assert "determined.common.wire.paths" in found
    assert "determined.common.wire.message" not in found
