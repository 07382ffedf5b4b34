"""Signed tokens: each is valid for one thing, and cannot be made without the secret."""

from __future__ import annotations

import uuid

import pytest

from determined.common.wire import serving
from determined.common.wire.serving import Served
from determined_deployments.agent.run_tokens import served_by

SECRET = "the-agents-token"
THINGS = [
    Served(serving.ALLOCATION, "7.2f6c-7d2e.1"),
    Served(serving.ALLOCATION, "1b.2"),
    Served(serving.TRIAL, "3"),
    Served(serving.EXPERIMENT, "3"),
    Served(serving.PIPELINE, "3"),
    Served(serving.DELETION, "3"),
    Served(serving.NEW_EXPERIMENT, "8a485dd0-31bc-43d2-9e5b-9fdd6e8bcfc8"),
    Served(serving.NEW_PIPELINE, "0d1f0c3e-8c43-4a09-9a4e-2e1b0fb6a3c8"),
    Served(serving.NEW_RETRAINING, "abf3da98-15a1-4b34-852e-3e61a7490fc8"),
]


@pytest.mark.parametrize("served", THINGS, ids=str)
def test_a_token_tells_its_purpose(served: Served) -> None:
    token = serving.sign(SECRET, served)
    assert token.startswith(serving.PREFIX)
    # It goes into a header, and into a variable.
    assert token.isascii()
    assert token.isprintable()
    assert " " not in token
    assert serving.read(SECRET, token) == served


def test_each_thing_has_its_own_token() -> None:
    assert len({serving.sign(SECRET, served) for served in THINGS}) == len(THINGS)


@pytest.mark.parametrize("served", THINGS, ids=str)
def test_no_other_secret_and_no_other_text_makes_one(served: Served) -> None:
    token = serving.sign(SECRET, served)
    head, _, signature = token.rpartition(".")
    forged = [
        serving.sign("another-secret", served),
        head,
        f"{head}.",
        f"{head}.{signature[:-1]}",
        f"{head}.{signature}=",
        f"{head}1.{signature}",
        f"{serving.PREFIX}experiment.4.{signature}",
        token.replace(serving.PREFIX, ""),
        serving.PREFIX,
        f"{head}.\udcff",
        SECRET,
        "",
    ]
    assert [one for one in forged if serving.read(SECRET, one) is not None] == []


RUN = uuid.UUID("b7a1d6f2-5a54-4a09-a5ba-07b61d5ddf3a")


@pytest.mark.parametrize(
    ("entrypoint", "parameters", "served"),
    [
        ("experiment.run_experiment", {"experiment_id": 7}, Served(serving.EXPERIMENT, "7")),
        ("experiment.run_experiment", {"experiment_id": "7"}, Served(serving.EXPERIMENT, "7")),
        ("experiment.run_experiment", {"config": {}}, Served(serving.NEW_EXPERIMENT, str(RUN))),
        ("experiment.run_experiment", {"experiment_id": "7.x"}, None),
        ("experiment.run_experiment", {"experiment_id": {}}, None),
        ("trial.run_trial", {"trial_id": 7}, Served(serving.TRIAL, "7")),
        ("trial.run_trial", {}, None),
        ("pipeline.run_pipeline", {"pipeline_id": 7}, Served(serving.PIPELINE, "7")),
        ("pipeline.run_pipeline", {"again": 7}, Served(serving.NEW_PIPELINE, str(RUN))),
        ("retrain.retrain", {"pipeline_id": 7, "model": "m"}, Served(serving.PIPELINE, "7")),
        ("retrain.retrain", {"model": "m"}, Served(serving.NEW_RETRAINING, str(RUN))),
        (
            "checkpoint_gc.delete_from_storage",
            {"deletion_id": 7},
            Served(serving.DELETION, "7"),
        ),
        ("checkpoint_gc.delete_from_storage", {}, None),
        ("tasks.run_command", {"task_id": "7"}, None),
    ],
)
def test_a_run_serves_the_object_in_its_parameters(
    entrypoint: str, parameters: dict[str, object], served: Served | None
) -> None:
    assert served_by(f"determined_flows.{entrypoint}", parameters, RUN) == served


def test_another_users_flow_serves_nothing() -> None:
    assert served_by(None, {"experiment_id": 7}, RUN) is None


def test_each_flow_that_asks_the_service_is_known_by_its_entrypoint() -> None:
    """A flow that moves would otherwise run without a token."""
    from determined_flows import checkpoint_gc, experiment, pipeline, retrain, trial

    found = [
        experiment.run_experiment,
        trial.run_trial,
        pipeline.run_pipeline,
        retrain.retrain,
        checkpoint_gc.delete_from_storage,
    ]
    parameters = ("experiment_id", "trial_id", "pipeline_id", "pipeline_id", "deletion_id")
    for flow, parameter in zip(found, parameters, strict=True):
        entrypoint = f"{flow.fn.__module__}.{flow.fn.__name__}"
        assert served_by(entrypoint, {parameter: 1}, RUN) is not None, entrypoint
        assert parameter in flow.parameters.properties


def test_an_order_of_the_release_before_is_read() -> None:
    """A supervisor of a container that was killed is followed by one of the release of the agent by then."""
    from determined_tasks.task_environment import AgentSide

    given = {"work_dir": "/w", "master": "http://m", "agent_id": "a"}
    assert AgentSide.from_json({**given, "agent_token": "secret"}).token == "secret"
    assert AgentSide.from_json({**given, "token": "own", "newer": 1}).token == "own"
