"""DetCallback with a real Trainer on a network made on the spot."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from one_trial import OneTrial

from determined import core, errors

transformers = pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate")

from determined.transformers import DetCallback  # noqa: E402

STEPS = 4  # an epoch: 16 records in batches of 4


def records(count: int) -> list[dict[str, torch.Tensor]]:
    """Sequences of 6 tokens; the class is whether the first is above the middle."""
    tokens = torch.randint(0, 8, (count, 6), generator=torch.Generator().manual_seed(5))
    return [{"input_ids": row, "labels": (row[0] > 3).long()} for row in tokens]


@pytest.fixture(scope="module", autouse=True)
def _imports_are_no_garbage() -> Iterator[None]:
    """Each training collects garbage, which takes a third of a second because of the Trainer's imports."""
    assert transformers.Trainer and transformers.BertForSequenceClassification  # imports them
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Watch(transformers.TrainerCallback):  # type: ignore[misc,name-defined,unused-ignore]
    """Calls ``at(step)`` after each step, before other callbacks see its end."""

    def __init__(self, at: Any) -> None:
        self.at = at

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.at(state.global_step)


def train(context: core.Context, watch: Any = lambda step: None, **options: Any) -> Any:
    """One leg of a training; the Trainer."""
    callback_options = {
        name: options.pop(name) for name in ("filter_metrics", "user_data") if name in options
    }
    before, after = options.pop("before", []), options.pop("after", [])
    resume, evaluated = options.pop("resume", True), options.pop("evaluated", records(8))
    data = options.pop("data", records(16))
    args = transformers.TrainingArguments(
        **{
            "output_dir": "out",
            "per_device_train_batch_size": 4,
            "num_train_epochs": 2,
            "eval_strategy": "epoch",
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            "seed": 3,
            **options,
        }
    )
    config = transformers.BertConfig(
        vocab_size=8,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    callback = DetCallback(context, args, **callback_options)
    transformers.set_seed(3)
    trainer = transformers.Trainer(
        model=transformers.BertForSequenceClassification(config),
        args=args,
        train_dataset=data,
        eval_dataset=evaluated,
        callbacks=[Watch(watch), *before, callback, *after],
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint if resume else None)
    return trainer


def losses(trial: OneTrial) -> dict[int, float]:
    return {step: metrics["loss"] for step, metrics in trial.reports("training").items()}


def test_metrics_checkpoints_and_progress(trial: OneTrial) -> None:
    with trial.leg() as context:
        train(context, save_strategy="epoch", user_data={"note": "mine"})
    assert sorted(trial.reports("training")) == list(range(1, 2 * STEPS + 1))
    validations = trial.reports("validation")
    assert sorted(validations) == [STEPS, 2 * STEPS]
    assert {"eval_loss", "batches", "epochs"} == set(validations[STEPS])
    assert (validations[8]["batches"], validations[8]["epochs"]) == (8, 2)
    assert trial.checkpoints() == [STEPS, 2 * STEPS]
    stored = list(trial.service.checkpoints)[-1]
    folder = trial.folder / stored / "checkpoint-8"
    assert json.loads((folder / "my_data.json").read_text()) == {"note": "mine"}
    assert (folder / "model.safetensors").is_file()
    assert not list((trial.folder / stored).glob("checkpoint-4"))
    assert trial.service.body("/progress")["progress"] == 1


@pytest.mark.parametrize("last", [STEPS, STEPS + 2])
def test_preempted_and_resumed_with_the_same_losses(
    trial: OneTrial, tmp_path: Path, last: int
) -> None:
    unbroken = OneTrial(tmp_path / "other")
    with unbroken.leg() as context:
        train(context)
    with trial.leg() as context:
        context.preempt.should_preempt()  # the watcher's first answer: no

        def stop(step: int) -> None:
            if step == last - 1:
                trial.preempt(context)

        train(context, stop)
    assert trial.checkpoints() == [last]
    assert any(path.endswith("ack_preemption") for path in trial.service.paths("POST"))
    assert sorted(trial.reports("validation")) == [STEPS]
    with trial.leg() as context:
        train(context)
    assert losses(trial) == losses(unbroken)
    assert trial.reports("validation") == unbroken.reports("validation")
    # The end is saved, too.
    assert trial.checkpoints() == [last, 8]


def test_several_data_sets_are_one_validation(trial: OneTrial) -> None:
    searcher = {"name": "single", "metric": "eval_b_loss", "max_length": {"epochs": 1}}
    trial.service.lengths = [1]
    with trial.leg(searcher) as context:
        trainer = train(context, evaluated={"a": records(8), "b": records(4)})
        trainer.evaluate(records(8), metric_key_prefix="eval_c")
    # The last one was asked for after the training.
    in_training, after = trial.service.reports[-2:]
    assert in_training["metrics"].keys() == {"batches", "epochs", "eval_a_loss", "eval_b_loss"}
    assert after["metrics"].keys() == {"batches", "epochs", "eval_c_loss"}
    assert trial.service.completed == [(1, in_training["metrics"]["eval_b_loss"])]


class Stream(torch.utils.data.IterableDataset[Any]):
    """The Trainer does not know how long an epoch is, and counts fractions of ``max_steps``."""

    def __iter__(self) -> Any:
        return iter(records(16))


def test_data_without_a_length(trial: OneTrial) -> None:
    with trial.leg() as context:
        train(context, data=Stream(), max_steps=10, save_strategy="epoch")
    assert sorted(trial.reports("validation")) == trial.checkpoints() == [STEPS, 2 * STEPS, 10]


def test_other_logs_of_a_script(trial: OneTrial) -> None:
    class Auxiliary(transformers.TrainerCallback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            logs = {"aux": state.global_step, "note": "so", "nested": {"a": 1}, "none": None}
            callback.on_log(args, state, control, logs)

    with trial.leg() as context:
        args = transformers.TrainingArguments(output_dir="out", report_to="none", use_cpu=True)
        callback = DetCallback(context, args)
        train(context, before=[Auxiliary()], num_train_epochs=1)
    found = [one["metrics"] for one in trial.service.reports if one["group"] == "training"]
    assert [one.get("aux") for one in found] == [1, None, 2, None, 3, None, 4, None]
    assert all("loss" in one for one in found[1::2])
    assert found[0] == {"batches": 1, "epochs": 0.25, "aux": 1, "note": "so", "nested": {"a": 1}}


def test_two_trainings_with_one_callback(trial: OneTrial, caplog: pytest.LogCaptureFixture) -> None:
    with trial.leg() as context:
        trainer = train(context, num_train_epochs=1)
        trainer.train()
    assert [
        one["steps_completed"] for one in trial.service.reports if "eval_loss" in one["metrics"]
    ] == [4, 4]
    assert trial.checkpoints() == [STEPS, STEPS]
    assert "training begins" not in caplog.text


@pytest.mark.parametrize("order", ["before", "after"])
def test_stopped_early(trial: OneTrial, order: str, caplog: pytest.LogCaptureFixture) -> None:
    stopper = transformers.EarlyStoppingCallback(1, early_stopping_threshold=10.0)
    with trial.leg() as context:
        train(
            context,
            num_train_epochs=5,
            metric_for_best_model="eval_loss",
            greater_is_better=False,
            **{order: [stopper]},
        )
    assert sorted(trial.reports("validation")) == [STEPS, 2 * STEPS]
    # A callback after ours decides last, without a message.
    assert trial.checkpoints() == ([2 * STEPS] if order == "before" else [])
    assert ("step 8, is in no checkpoint" in caplog.text) == (order == "after")


def test_a_script_that_forgets_the_checkpoint(
    trial: OneTrial, caplog: pytest.LogCaptureFixture
) -> None:
    for epochs in (1, 2):
        with trial.leg() as context:
            train(context, num_train_epochs=epochs, save_strategy="epoch", resume=False)
    assert caplog.text.count("training begins at step 0") == 1
    assert trial.checkpoints() == [STEPS, STEPS, 2 * STEPS]
    assert (
        "latest checkpoint is of step 4; to go on from it, call trainer.train(resume" in caplog.text
    )


@pytest.mark.parametrize(("unit", "lengths"), [("epochs", [1, 3]), ("batches", [3, 9])])
def test_lengths_that_the_searcher_assigns(
    trial: OneTrial, unit: str, lengths: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "determined")
    trial.service.lengths = lengths
    searcher = {"name": "adaptive_asha", "metric": "eval_loss", "max_length": {unit: 9}}
    with trial.leg(searcher) as context:
        trainer = train(context, eval_strategy="no")
    batches = [length * (STEPS if unit == "epochs" else 1) for length in lengths]
    assert sorted(trial.reports("validation")) == trial.checkpoints() == batches
    metrics = [trial.reports("validation")[step]["eval_loss"] for step in batches]
    assert trial.service.completed == list(zip(lengths, metrics, strict=True))
    # Schedules reach to the longest length, whatever was assigned.
    assert trainer.state.max_steps == 9 * (STEPS if unit == "epochs" else 1)
    assert "the searcher's length in the configuration counts" in caplog.text
    calls = trial.service.paths("POST")
    ends = [n for n, path in enumerate(calls) if path.endswith("completed_operation")]
    stored = [n for n, path in enumerate(calls) if path == "/api/v1/checkpoints"]
    assert stored[0] < ends[0] < stored[1] < ends[1]


def test_a_length_that_ended_but_was_not_heard_of(trial: OneTrial) -> None:
    searcher = {"name": "adaptive_asha", "metric": "eval_loss", "max_length": {"batches": 9}}
    trial.service.lengths = [3, 6]

    def lost(method: str, path: str, body: Any) -> None:
        if path.endswith("completed_operation"):
            raise KeyboardInterrupt  # the process dies between checkpoint and report

    trial.service.before = lost  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt), trial.leg(searcher) as context:
        train(context)
    trial.service.before = lambda *_: None
    with trial.leg(searcher) as context:
        train(context)
    assert [length for length, _ in trial.service.completed] == [3, 6]
    assert trial.service.completed[0][1] == trial.reports("validation")[3]["eval_loss"]
    assert trial.checkpoints() == [3, 6]
    with trial.leg(searcher) as context:
        train(context)
    assert max(losses(trial)) == 6


def test_time_metrics(trial: OneTrial) -> None:
    timed = {"name": "adaptive_asha", "metric": "eval_loss", "time_metric": "epochs", "max_time": 3}
    with trial.leg(timed) as context:
        train(context)
    assert [metrics["epochs"] for metrics in trial.reports("validation").values()] == [1, 2, 3]
    assert trial.service.completed == []


def test_another_trials_checkpoint_gives_its_weights(trial: OneTrial) -> None:
    with trial.leg() as context:
        train(context, num_train_epochs=1)
    (stored,) = trial.service.checkpoints.values()
    stored["metadata"]["trial_id"] = 99
    trial.service.reports.clear()
    with trial.leg() as context:
        args = transformers.TrainingArguments(output_dir="warm", use_cpu=True, report_to="none")
        DetCallback(context, args)
        trainer = train(context, output_dir="again", num_train_epochs=1)
    folder = Path(args.resume_from_checkpoint or "")
    assert (folder / "model.safetensors").is_file()
    assert not (folder / "optimizer.pt").exists()
    assert trainer.state.global_step == STEPS
    assert sorted(trial.reports("training")) == [1, 2, 3, 4]


def test_filtered_metrics_keep_the_searchers(trial: OneTrial) -> None:
    with trial.leg() as context:
        train(context, num_train_epochs=1, filter_metrics=["grad"])
    assert set(trial.reports("training")[1]) == {"grad_norm", "batches", "epochs"}
    assert "eval_loss" in trial.reports("validation")[STEPS]


@pytest.mark.parametrize(
    ("searcher", "message"),
    [
        ({"max_length": {"records": 100}}, r"\{epochs: 10\} or \{batches: 10\}; found .*records"),
        ({"max_length": 100}, "a unit that transformers.Trainer counts.*found 100"),
    ],
)
def test_units_that_it_cannot_count(
    trial: OneTrial, searcher: dict[str, Any], message: str
) -> None:
    wrong = {"name": "single", "metric": "eval_loss", **searcher}
    with (
        pytest.raises(errors.InvalidConfigurationException, match=message),
        trial.leg(wrong) as context,
    ):
        train(context)


@pytest.mark.parametrize(("size", "advice"), [(2, "use_cpu=True"), (0, "from_torch_distributed")])
def test_processes_that_do_not_know_of_each_other(trial: OneTrial, size: int, advice: str) -> None:
    with pytest.raises(ValueError, match=advice), trial.leg() as context:
        context.distributed.size = size
        train(context)


def test_a_missing_searcher_metric(trial: OneTrial) -> None:
    with (
        pytest.raises(errors.InvalidModelException, match=r"'accuracy'.*eval_loss"),
        trial.leg({"name": "single", "metric": "accuracy"}) as context,
    ):
        train(context)


def test_another_users_checkpoint(trial: OneTrial) -> None:
    with trial.leg() as context, context.checkpoint.store_path({"steps_completed": 2}) as (path, _):
        (path / "state.pt").write_bytes(b"no Trainer wrote this")
    with (
        pytest.raises(errors.InvalidCheckpointException, match=r"checkpoint-2/trainer_state\.json"),
        trial.leg() as context,
    ):
        train(context)


def test_each_machine_stores_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_SESSION_TOKEN", f"{os.getpid()}-{time.monotonic_ns()}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def machine(rank: int) -> None:
        output = tmp_path / f"machine{rank}"
        (output / "checkpoint-5").mkdir(parents=True)
        (output / "checkpoint-4").mkdir()
        (output / "checkpoint-5" / f"rng_state_{rank}.pth").write_text(str(rank))
        places = {"local_rank": 0, "local_size": 1, "cross_rank": rank, "cross_size": 2}
        with (
            core.DistributedContext(
                rank=rank, size=2, **places, chief_ip="127.0.0.1", pub_port=port
            ) as dist,
            core.init(distributed=dist, checkpoint_storage=str(tmp_path / "storage")) as context,
        ):
            callback = object.__new__(DetCallback)
            callback.core_context, callback.user_data = context, {"note": 1}
            callback._store(output, 5)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(machine, range(2)))
    (stored,) = (tmp_path / "storage").glob("*/checkpoint-5")
    assert {"my_data.json", "rng_state_0.pth", "rng_state_1.pth"} == {
        path.name for path in stored.iterdir()
    }
    assert not list((tmp_path / "storage").glob("*/checkpoint-4"))


def test_off_the_cluster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "determined")
    with core.init(checkpoint_storage=str(tmp_path / "local")) as context:
        train(context, save_strategy="epoch")
    assert "validation metrics after 8 steps" in caplog.text
    assert len(list((tmp_path / "local").glob("*/checkpoint-*"))) == 2
