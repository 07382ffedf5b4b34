"""DeterminedCallback in model.fit() of Keras 3 on torch."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_trial import OneTrial

from determined import core, errors

keras = pytest.importorskip("keras", reason="needs keras")

from determined.keras import DeterminedCallback, TensorBoard  # noqa: E402
from tests.waiting import TIMEOUT_S  # noqa: E402

STEPS = 4
SINGLE = {"name": "single", "metric": "loss"}
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="needs KERAS_BACKEND=torch"
)


def build(optimizer: Any = keras.optimizers.Adam) -> Any:
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    model.compile(optimizer(0.1), "mse")
    return model


def data(batches: int) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(1).normal(size=(4 * batches, 2)).astype("float32")
    return inputs, inputs.sum(1, keepdims=True)


class Watch(keras.callbacks.Callback):  # type: ignore[misc,name-defined,unused-ignore]
    def __init__(self, at: Any) -> None:
        super().__init__()
        self.at = at

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.at(epoch)


def train(context: core.Context, watch: Any = lambda epoch: None, **options: Any) -> Any:
    """One leg of a training, by each process with its share of the records; the model."""
    names = ("train_metrics_report_period", "checkpoint_epochs", "continue_id")
    given = {name: options.pop(name) for name in names if name in options}
    latest = context.info.latest_checkpoint if context.info is not None else None
    callback = options.pop("callback", DeterminedCallback)(
        context, latest, **{"continue_id": 7, **given}
    )
    model = build(options.pop("optimizer", keras.optimizers.Adam))
    arguments = {"epochs": 3, "validation_data": data(1), "verbose": 0, **options}
    dist = context.distributed
    share = [part[dist.rank :: dist.size] for part in data(STEPS)]
    size = 4 // dist.size
    model.fit(*share, batch_size=size, callbacks=[Watch(watch), callback], **arguments)
    return model


def test_metrics_checkpoints_and_progress(
    trial: OneTrial, capsys: pytest.CaptureFixture[str]
) -> None:
    with trial.leg(SINGLE) as context:
        train(context, verbose=1)
    training, validation = trial.reports("training"), trial.reports("validation")
    assert sorted(training) == sorted(validation) == trial.checkpoints() == [4, 8, 12]
    assert set(training[4]) == set(validation[4]) == {"loss", "batches", "epochs"}
    assert (validation[8]["epochs"], training[8]["epochs"]) == (2, 2)
    assert trial.service.body("/progress")["progress"] == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[:10] for line in lines] == ["epoch 1/3:", "epoch 2/3:", "epoch 3/3:"]


def test_periods(trial: OneTrial) -> None:
    with trial.leg(SINGLE) as context:
        train(context, train_metrics_report_period=3, checkpoint_epochs=2)
    assert sorted(trial.reports("training")) == [3, 6, 9, 12]
    assert trial.checkpoints() == [8, 12]


def test_preempted_and_resumed_with_the_same_losses(trial: OneTrial, tmp_path: Path) -> None:
    unbroken = OneTrial(tmp_path / "other")
    with unbroken.leg(SINGLE) as context:
        model = train(context)
    with trial.leg(SINGLE) as context:
        context.preempt.should_preempt()

        def stop(epoch: int) -> None:
            if epoch == 1:
                trial.preempt(context)

        train(context, stop, checkpoint_epochs=0)
    assert trial.checkpoints() == [8]
    with trial.leg(SINGLE) as context:
        resumed = train(context)
    assert trial.reports("training") == unbroken.reports("training")
    assert trial.reports("validation") == unbroken.reports("validation")
    for weight, again in zip(model.get_weights(), resumed.get_weights(), strict=True):
        assert np.array_equal(weight, again)


def test_lengths_that_the_searcher_assigns(trial: OneTrial) -> None:
    trial.service.lengths = [1, 3]
    with trial.leg({**SINGLE, "max_length": {"epochs": 9}}) as context:
        train(context, epochs=9, checkpoint_epochs=0)
    assert trial.checkpoints() == [4, 12]
    metrics = [trial.reports("validation")[step]["loss"] for step in (4, 12)]
    assert trial.service.completed == [(1, metrics[0]), (3, metrics[1])]
    assert max(trial.reports("training")) == 12


def test_fit_called_twice(trial: OneTrial, caplog: pytest.LogCaptureFixture) -> None:
    """As in transfer learning: epochs are counted over both, also in a start that goes on."""

    def both(context: core.Context, first: int, then: int) -> None:
        callback = DeterminedCallback(context, context.info.latest_checkpoint, 7)  # type: ignore[union-attr]
        model = train(context, callback=lambda *_, **__: callback, epochs=first)
        arguments = {"epochs": then, "initial_epoch": first, "validation_data": data(1)}
        model.fit(*data(STEPS), batch_size=4, callbacks=[callback], verbose=0, **arguments)
        model.evaluate(*data(2), callbacks=[callback], verbose=0)

    with trial.leg(SINGLE) as context:
        train(context, epochs=1)
    with trial.leg(SINGLE) as context:
        both(context, 2, 3)
    evaluated = trial.service.reports.pop()
    assert (evaluated["steps_completed"], evaluated["metrics"]["epochs"]) == (12, 3)
    for group in ("training", "validation"):
        assert {n: one["epochs"] for n, one in trial.reports(group).items()} == {4: 1, 8: 2, 12: 3}
    assert trial.checkpoints() == [4, 8, 12]
    assert "nothing to train" not in caplog.text
    with trial.leg(SINGLE) as context:
        both(context, 3, 3)
    assert caplog.text.count("nothing to train: model.fit() was called with epochs=3, but 3") == 2


def test_epochs_that_begin_later(trial: OneTrial) -> None:
    trial.service.lengths = [3]
    with trial.leg({**SINGLE, "max_length": {"epochs": 3}}) as context:
        train(context, initial_epoch=1)
    assert [one["epochs"] for one in trial.reports("validation").values()] == [2, 3]
    assert [length for length, _ in trial.service.completed] == [3]


def test_a_length_that_ended_but_was_not_heard_of(trial: OneTrial) -> None:
    searcher = {**SINGLE, "max_length": {"epochs": 9}}
    trial.service.lengths = [1, 2]

    def lost(method: str, path: str, body: Any) -> None:
        if path.endswith("completed_operation"):
            raise KeyboardInterrupt

    trial.service.before = lost  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt), trial.leg(searcher) as context:
        train(context, epochs=9)
    trial.service.before = lambda *_: None
    for _ in range(2):  # the second has nothing to do
        with trial.leg(searcher) as context:
            train(context, epochs=9)
    assert [length for length, _ in trial.service.completed] == [1, 2]
    assert trial.service.completed[0][1] == trial.reports("validation")[4]["loss"]
    assert max(trial.reports("training")) == 8


@pytest.mark.parametrize(
    ("searcher", "options", "error"),
    [
        ({"max_length": {"epochs": 9}}, {}, r"may train 9 epochs.*epochs=3: give epochs=9"),
        ({"max_length": {"batches": 9}}, {}, r"in a unit that keras counts, e\.g\. \{epochs: 10\}"),
        ({"max_length": {"epochs": 3}}, {"validation_data": None}, "needs validation_data"),
        ({"metric": "val_loss"}, {}, r"'val_loss'.* it has batches, epochs, loss"),
    ],
)
def test_mistakes(
    trial: OneTrial, searcher: dict[str, Any], options: dict[str, Any], error: str
) -> None:
    trial.service.lengths = [1]
    kinds = (errors.InvalidConfigurationException, errors.InvalidModelException)
    with pytest.raises(kinds, match=error), trial.leg({**SINGLE, **searcher}) as context:
        train(context, **options)


def test_a_checkpoint_with_another_id_gives_its_model(trial: OneTrial) -> None:
    with trial.leg(SINGLE) as context:
        first = train(context)
    trial.service.reports.clear()
    with trial.leg(SINGLE) as context:
        model = train(context, continue_id=8, epochs=1)
    assert sorted(trial.reports("training")) == [4]
    # Four small steps from there, and not from the beginning.
    ends, begins = first.get_weights()[0], build().get_weights()[0]
    assert np.abs(model.get_weights()[0] - ends).max() < np.abs(ends - begins).max() / 2


def test_saving_in_a_custom_way(trial: OneTrial) -> None:
    class Whole(DeterminedCallback):
        def save_model(self, model: Any, path: str, distributed: Any) -> None:
            model.save(f"{path}.keras")

        def load_model(self, model: Any, path: str, distributed: Any) -> None:
            model.set_weights(keras.models.load_model(f"{path}.keras").get_weights())

    with trial.leg(SINGLE) as context:
        train(context, callback=Whole, epochs=1)
    stored = next(iter(trial.service.checkpoints))
    names = {path.name for path in (trial.folder / stored).iterdir()}
    assert {"model_checkpoint.keras", "callback_state"} < names
    assert "model_checkpoint.weights.h5" not in names
    with trial.leg(SINGLE) as context:
        train(context, callback=Whole, epochs=2)
    assert sorted(trial.reports("training")) == [4, 8]


def test_tensorboard_files(trial: OneTrial) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with trial.leg(SINGLE) as context:
        board = TensorBoard(context, "elsewhere", histogram_freq=1, update_freq="batch")
        model = build()
        model.fit(*data(STEPS), batch_size=4, epochs=2, verbose=0, callbacks=[board])
        files = EventAccumulator(str(context.train.get_tensorboard_path() / "train"))
        files.Reload()
    assert [event.step for event in files.Scalars("epoch_loss")] == [0, 1]
    assert len(files.Scalars("batch_loss")) == 2 * STEPS
    assert files.Tags()["histograms"]
    assert not Path("elsewhere").exists()


def test_tensorboard_files_want_a_package(trial: OneTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name in ("tensorflow", "tensorboard") else find(name),
    )
    with (
        trial.leg(SINGLE) as context,
        pytest.raises(ImportError, match=r"pip install .*\[tensorboard\]"),
    ):
        TensorBoard(context)


def test_names_of_trial_classes_name_an_alternative() -> None:
    import determined.keras

    with pytest.raises(ImportError, match=r"TFKerasTrial is not in this .*DeterminedCallback"):
        from determined.keras import TFKerasTrial  # noqa: F401
    with pytest.raises(ImportError, match=r"keras\.callbacks"):
        import determined.keras.callbacks
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = determined.keras.Nothing


def test_a_backend_that_is_not_installed() -> None:
    if importlib.util.find_spec("jax") is not None:
        pytest.skip("jax is installed")
    done = subprocess.run(
        [sys.executable, "-c", "import determined.keras"],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    last = done.stderr.splitlines()[-1]
    assert "keras uses the backend jax, which is not installed" in last, done.stderr
    assert "KERAS_BACKEND=torch" in last


def test_off_the_cluster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "determined")
    with core.init(checkpoint_storage=str(tmp_path / "local")) as context:
        train(context)
    assert "validation metrics after 12 steps" in caplog.text
    assert len(list((tmp_path / "local").glob("*/model_checkpoint.weights.h5"))) == 3
