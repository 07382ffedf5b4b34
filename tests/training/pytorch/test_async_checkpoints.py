"""A Trainer that goes on while its checkpoints are stored."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_pytorch_on_cluster import SINGLE, Cluster
from test_save_state import Gate
from trials import SmallTrial, World

from determined import errors, pytorch
from determined.core import _staging
from determined.storage import build
from tests.training.pytorch.async_kills import check_killed
from tests.waiting import TIMEOUT_S, until

LENGTH = pytorch.Batch(18)
OFTEN: dict[str, Any] = {
    "max_length": LENGTH,
    "checkpoint_period": pytorch.Batch(2),
    "reporting_period": pytorch.Batch(1),
}


def files(world: World, uuid: str) -> dict[str, bytes]:
    root = world.folder / uuid
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name[0] != "."}


@pytest.mark.parametrize("aggregation", [1, 4])
def test_the_checkpoints_are_the_same(world: World, tmp_path: Path, aggregation: int) -> None:
    """Byte for byte, with gradients that no step has used yet as well."""
    other = World(tmp_path / "other")
    options = {"aggregation_frequency": aggregation}
    plain = world.train(context_options=options, async_checkpoints=False, **OFTEN)
    quick = other.train(context_options=options, async_checkpoints=True, **OFTEN)
    assert quick.seen == plain.seen
    assert list(quick.stored) == list(plain.stored) == list(range(2, 19, 2))
    for steps, uuid in plain.stored.items():
        assert files(other, quick.stored[steps]) == files(world, uuid)


@pytest.mark.parametrize("wanted", [True, "skip"])
def test_a_resume_is_exact(world: World, wanted: Any) -> None:
    whole = world.train(max_length=LENGTH)
    first = world.train(async_checkpoints=wanted, **OFTEN)
    assert first.seen == whole.seen
    for steps, uuid in first.stored.items():
        rest = world.train(latest_checkpoint=uuid, async_checkpoints=wanted, **OFTEN)
        assert whole.seen[:steps] + rest.seen == whole.seen
        for one, other in zip(rest.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(one, other)


class Watched(SmallTrial):
    """Its storage is held at ``gate``, and it calls ``after(batch)`` after each batch."""

    gate: Gate
    after: Callable[[int], None]
    told: list[str]

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.gate = Gate(context._core.checkpoint)
        self.told = []
        self.callbacks["told"] = _Told(self.told)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        found = super().train_batch(batch, epoch_idx, batch_idx)
        self.after(batch_idx + 1)
        return found


class _Told(pytorch.PyTorchCallback):
    def __init__(self, told: list[str]) -> None:
        self._told = told

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self._told.append(uuid)


def after(work: Callable[[Watched, int], None]) -> Callable[[Any], None]:
    def prepare(trial: Watched) -> None:
        trial.after = lambda batch: work(trial, batch)

    return prepare


def test_skip_leaves_out_what_comes_too_early(world: World) -> None:
    """The training goes on while one is stored; the checkpoint of the end waits."""

    def work(trial: Watched, batch: int) -> None:
        if batch == 3:
            assert trial.gate.reached.wait(TIMEOUT_S)
        assert trial.told == [] or batch > 9
        if batch == 9:
            trial.gate.open.set()
            until("the first is stored", lambda: trial.context._core.checkpoint.uuids)
            until("it is over", lambda: not trial.context._core.checkpoint.is_busy())

    trial = world.train(Watched, after(work), async_checkpoints="skip", **OFTEN)
    # Those of batches 4, 6 and 8 were left out, and no other: but the last checkpoint of all may
    # have been late for the next one.
    assert {2, 10, 18} <= set(trial.stored)
    assert not {4, 6, 8} & set(trial.stored)
    assert trial.told == list(trial.stored.values())


def test_the_next_one_waits(world: World) -> None:
    events: list[str] = []

    def work(trial: Watched, batch: int) -> None:
        if batch == 3:
            # Longer than everything that the training could do meanwhile.
            threading.Timer(0.3, lambda: (events.append("opened"), trial.gate.open.set())).start()
        events.append(str(batch))

    trial = world.train(Watched, after(work), async_checkpoints=True, **OFTEN)
    # Batch 4 is trained, and its checkpoint comes after that of batch 2.
    assert events.index("opened") == 4
    assert list(trial.stored) == list(range(2, 19, 2))
    assert trial.told == list(trial.stored.values())


def test_an_error_ends_the_training_at_the_next_stretch(world: World) -> None:
    seen: list[int] = []

    def work(trial: Watched, batch: int) -> None:
        seen.append(batch)
        trial.gate.error = errors.StorageError("no space")
        trial.gate.open.set()
        if batch == 3:
            until("it failed", lambda: not trial.context._core.checkpoint.is_busy())

    with pytest.raises(errors.StorageError, match="no space") as caught:
        world.train(Watched, after(work), async_checkpoints=True, **OFTEN)
    assert seen == [1, 2, 3]
    assert "Mend the cause" in caught.value.__notes__[-1]


def test_a_pause_waits(tmp_path: Path) -> None:
    """The process of a preempted trial ends when its checkpoint is known, and not before."""
    cluster = Cluster(tmp_path / "storage")
    cluster.service.lengths = [18]
    opened = threading.Event()

    def prepare(trial: Any) -> None:
        gate = Gate(trial.context._core.checkpoint)

        def work() -> None:
            assert gate.reached.wait(TIMEOUT_S)
            opened.wait(0.3)
            assert cluster.checkpoints() == []
            gate.open.set()

        threading.Thread(target=work, daemon=True).start()
        cluster.service.preempt.set()

    searcher = {**SINGLE, "max_length": {"batches": 18}}
    cluster.train(searcher, prepare, async_checkpoints=True, reporting_period=pytorch.Batch(3))
    assert cluster.checkpoints() == [3]
    assert cluster.service.completed == []


def test_the_searcher_is_told_when_the_checkpoint_is_there(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "storage")
    cluster.service.lengths = [2, 4]
    cluster.train(SINGLE | {"max_length": {"batches": 4}}, async_checkpoints=True)
    calls = cluster.service.paths("POST")
    ends = [n for n, path in enumerate(calls) if path.endswith("completed_operation")]
    stored = [n for n, path in enumerate(calls) if path == "/api/v1/checkpoints"]
    assert stored[0] < ends[0] < stored[1] < ends[1]


class Stores(pytorch.PyTorchCallback):
    def __init__(self, trial: Any) -> None:
        self._trial = trial

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        count = len(self._trial.seen)
        Path(checkpoint_dir, "batches").write_text(str(count))


def test_a_callback_that_writes_files_is_called_with_the_state_it_belongs_to(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def prepare(trial: Any) -> None:
        trial.callbacks["stores"] = Stores(trial)

    with caplog.at_level(logging.INFO):
        trial = world.train(prepare=prepare, async_checkpoints=True, **OFTEN)
    for steps, uuid in trial.stored.items():
        assert (world.folder / uuid / "batches").read_text() == str(steps)
    assert any("async_checkpoints has no effect" in line for line in caplog.messages)


def test_without_memory_it_is_as_without_the_option(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = world.train(async_checkpoints=False, **OFTEN)
    monkeypatch.setattr(_staging, "available_bytes", lambda: 0)
    trial = world.train(async_checkpoints=True, **OFTEN)
    assert list(trial.stored) == list(plain.stored)
    assert trial.seen == plain.seen


@pytest.fixture
def in_background(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what was stored in the background."""
    from determined.core import _background

    started: list[str] = []
    start = _background.Background.start

    def noted(self: Any, what: str, work: Any) -> None:
        started.append(what)
        start(self, what, work)

    monkeypatch.setattr(_background.Background, "start", noted)
    yield started


@pytest.mark.parametrize(
    ("given", "configured", "expected"),
    [
        (None, None, False),  # on a CPU
        (None, True, True),
        (None, "skip", True),
        (False, True, False),
        (True, False, True),
    ],
)
def test_who_decides(
    world: World, in_background: list[str], given: Any, configured: Any, expected: bool
) -> None:
    config = {} if configured is None else {"async_checkpoints": configured}
    world.train(
        context_options={"exp_conf": config},
        max_length=pytorch.Batch(2),
        async_checkpoints=given,
    )
    assert bool(in_background) == expected


@pytest.mark.parametrize("wrong", [1, 0, "wait", "Skip", {}])
def test_wrong_values(world: World, wrong: Any) -> None:
    with pytest.raises(ValueError, match='async_checkpoints must be True, False, "skip" or None'):
        world.train(async_checkpoints=wrong)


INTERRUPTED = """
import os, signal, threading
import torch
from determined import core, pytorch
from determined.core import _context
from trials import SmallTrial

torch.set_num_threads(1)
init = _context.init
reached, go_on = threading.Event(), threading.Event()


def slow(**given):
    context = init(**given, checkpoint_storage=os.path.abspath("storage"))
    finish = context.checkpoint._storage.finish

    def held(*args):
        reached.set()
        assert go_on.wait(60)
        if os.environ["REFUSED"] == "yes":
            raise OSError("no space")
        finish(*args)

    context.checkpoint._storage.finish = held
    wait = context.checkpoint.wait

    def opened():  # whoever waits for that checkpoint lets the storage go on
        if reached.is_set():
            go_on.set()
        wait()

    context.checkpoint.wait = opened
    return context


core.init = slow


class Trial(SmallTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 2:
            assert reached.wait(60) and not go_on.is_set()
            os.kill(os.getpid(), signal.SIGINT)
        return super().train_batch(batch, epoch_idx, batch_idx)


try:
    with pytorch.init(hparams={"global_batch_size": 4}) as context:
        pytorch.Trainer(Trial(context), context).fit(
            max_length=pytorch.Batch(9), checkpoint_period=pytorch.Batch(2), async_checkpoints=True
        )
except KeyboardInterrupt:
    stored = [name for name in os.listdir("storage") if name[0] != "."]
    print("interrupted with", len(stored), "stored", *stored)
"""


@pytest.mark.parametrize("refused", ["no", "yes"])
def test_ctrl_c_waits_for_the_checkpoint_on_its_way(tmp_path: Path, refused: str) -> None:
    """It is there as a whole when the block ends; one that the storage refused is not there at all."""
    (tmp_path / "train.py").write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[3]}",
            "REFUSED": refused,
        },
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
    )
    if refused == "yes":
        assert "interrupted with 0 stored" in done.stdout, done.stderr
        assert "no space" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert "interrupted with 1 stored" in done.stdout, done.stderr
    folder = tmp_path / "storage" / done.stdout.split()[-1]
    assert json.loads((folder / "metadata.json").read_text())["steps_completed"] == 2
    build({"type": "directory", "container_path": str(tmp_path / "storage")}).verify(folder.name)
    assert "models_state_dict" in torch.load(folder / "state_dict.pth", weights_only=False)


WORKERS = """
import json, os, sys, time
import torch
from determined import core, pytorch
from determined.core import _context
from trials import SmallTrial

torch.set_num_threads(1)
init = _context.init
core.init = lambda **given: init(**given, checkpoint_storage=os.path.abspath("storage"))


class Trial(SmallTrial):
    def build_callbacks(self):
        return {"uuids": Uuids(self)}


class Uuids(pytorch.PyTorchCallback):
    def __init__(self, trial):
        self.trial, self.told = trial, []

    def on_checkpoint_upload_end(self, uuid):
        assert os.path.isdir("storage/" + uuid)
        self.told.append(uuid)


def train(wanted, latest=None):
    # A rank that comes later must not be looked for at its address of the group before.
    time.sleep(int(os.environ["RANK"]))
    config = {"reproducibility": {"experiment_seed": 7}}
    with pytorch.init(hparams={"global_batch_size": 4}, exp_conf=config) as context:
        trial = Trial(context)
        callbacks = trial.build_callbacks()
        trial.build_callbacks = lambda: callbacks
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(9),
            checkpoint_period=pytorch.Batch(3),
            reporting_period=pytorch.Batch(1),
            latest_checkpoint=latest,
            async_checkpoints=wanted,
        )
        return [loss.hex() for loss, _ in trial.seen], callbacks["uuids"].told, context.distributed.rank


plain, _, _ = train(False)
losses, told, rank = train(True)
assert losses == plain, (losses, plain)
assert len(told) == 3
rest, _, _ = train(True, told[0])
assert rest == plain[3:], (rest, plain)
print("rank", rank, "is right")
"""


def test_several_processes(tmp_path: Path) -> None:
    """The chief stores; every process' callbacks are told, and the losses are those of any training."""
    (tmp_path / "train.py").write_text(WORKERS)
    launch = [sys.executable, "-m", "determined.launch.torch_distributed", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[3]}"},
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank 0 is right" in done.stdout
    assert "rank 1 is right" in done.stdout


def test_killed_at_any_moment() -> None:
    check_killed(6)
