"""States that are stored while the training changes them: ``core_context.checkpoint.save_state``."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from determined import core, errors
from determined.core import _staging
from determined.core._checkpoint import DummyCheckpointContext
from determined.storage import build
from tests.waiting import TIMEOUT_S


class Gate:
    """Holds the storage until it is opened, with the checkpoint's files written."""

    def __init__(self, checkpoint: core.CheckpointContext) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.error: Exception | None = None
        self._finish = checkpoint._storage.finish
        checkpoint._storage.finish = self.finish  # type: ignore[method-assign]

    def finish(self, *args: Any) -> None:
        self.reached.set()
        assert self.open.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        self._finish(*args)


@pytest.fixture
def checkpoint(tmp_path: Path) -> DummyCheckpointContext:
    section = {"type": "directory", "container_path": str(tmp_path / "storage")}
    return DummyCheckpointContext(core.DummyDistributedContext(), build(section))


@pytest.fixture
def gate(checkpoint: DummyCheckpointContext) -> Iterator[Gate]:
    gate = Gate(checkpoint)
    yield gate
    gate.open.set()


def stored(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "storage").iterdir() if path.name[0] != ".")


def everything() -> dict[str, Any]:
    """Tensors of many kinds, several of them over the same memory."""
    weights = torch.randn(10, 10, generator=torch.Generator().manual_seed(1))
    parameter = torch.nn.Parameter(weights[0].clone())
    parameter.sum().backward()
    return OrderedDict(
        weights=weights,
        view=weights[2:4].t(),
        parameter=parameter,
        frozen=torch.nn.Parameter(torch.ones(2), requires_grad=False),
        empty=torch.empty(0, 3),
        scalar=torch.tensor(3),
        half=torch.ones(3, dtype=torch.bfloat16),
        sparse=torch.eye(3).to_sparse(),
        nested={"list": [1, "a", (weights,)], "random": torch.random.get_rng_state()},
        raw=torch.ones(4).untyped_storage(),
    )


def saved(state: Any) -> bytes:
    target = io.BytesIO()
    torch.save(state, target)
    return target.getvalue()


def spoil(state: dict[str, Any]) -> None:
    with torch.no_grad():
        for key in ("weights", "parameter", "half", "scalar"):
            state[key].zero_()
    state["nested"]["list"].append("later")
    state["later"] = 1


def test_the_file_is_that_of_the_state_at_the_call(
    checkpoint: DummyCheckpointContext, gate: Gate, tmp_path: Path
) -> None:
    for number in range(2):  # in fresh memory, and in that of the last copy
        state = everything()
        expected = tmp_path / "state.pt"
        torch.save(state, expected)
        uuid = checkpoint.save_state(state, {"steps_completed": number})
        assert uuid is not None
        spoil(state)
        assert gate.reached.wait(TIMEOUT_S)
        assert uuid not in stored(tmp_path)
        gate.open.set()
        checkpoint.wait()
        with checkpoint.restore_path(uuid) as path:
            assert {one.name for one in path.iterdir()} >= {"state.pt", "metadata.json"}
            assert (path / "state.pt").read_bytes() == expected.read_bytes()
        assert checkpoint.get_metadata(uuid) == {"steps_completed": number}


def test_one_at_a_time(checkpoint: DummyCheckpointContext, gate: Gate, tmp_path: Path) -> None:
    first = checkpoint.save_state({"w": torch.ones(3)})
    assert gate.reached.wait(TIMEOUT_S)
    assert checkpoint.is_busy()
    assert checkpoint.save_state({"w": torch.ones(3)}, busy="skip") is None
    second: list[str | None] = []
    waiting = threading.Thread(
        target=lambda: second.append(checkpoint.save_state({"w": torch.zeros(3)}))
    )
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    gate.open.set()
    waiting.join(TIMEOUT_S)
    checkpoint.wait()
    assert not checkpoint.is_busy()
    assert stored(tmp_path) == sorted([str(first), str(second[0])])
    with checkpoint.restore_path(str(first)) as path:
        assert torch.load(path / "state.pt")["w"].tolist() == [1, 1, 1]
    assert checkpoint.save_state({"w": torch.ones(3)}, busy="skip") is not None
    checkpoint.wait()


@pytest.mark.parametrize("busy", ["wait", "skip"])
def test_the_next_call_tells_of_the_error(
    checkpoint: DummyCheckpointContext, gate: Gate, tmp_path: Path, busy: Any
) -> None:
    checkpoint.save_state({"w": torch.ones(3)})
    gate.error = errors.StorageError("no space")
    gate.open.set()
    assert checkpoint._background._thread is not None
    checkpoint._background._thread.join(TIMEOUT_S)
    with pytest.raises(errors.StorageError, match="no space") as caught:
        checkpoint.save_state({"w": torch.ones(3)}, busy=busy)
    note = caught.value.__notes__[-1]
    assert "in the background, while storing checkpoint" in note
    assert "Mend the cause, then store again" in note
    assert stored(tmp_path) == []
    gate.error = None
    assert checkpoint.save_state({"w": torch.ones(3)}, busy=busy) is not None
    checkpoint.wait()
    assert len(stored(tmp_path)) == 1


def test_what_is_wrong_is_refused_at_once(
    checkpoint: DummyCheckpointContext, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match='"wait" or "skip", found \'now\''):
        checkpoint.save_state({}, busy="now")  # type: ignore[arg-type]
    with pytest.raises(Exception, match="lambda"):
        checkpoint.save_state({"f": lambda: None})
    with pytest.raises(TypeError, match="metadata must be JSON"):
        checkpoint.save_state({}, {"steps_completed": object()})
    assert not checkpoint.is_busy()
    assert not (tmp_path / "storage").exists()


def test_the_memory_is_that_of_one_copy(checkpoint: DummyCheckpointContext) -> None:
    sizes = []
    for count in (1000, 250_000, 1000, 250_000):
        checkpoint.save_state({"w": torch.ones(count), "v": torch.ones(16)})
        sizes.append(checkpoint._of_torch()._staging.bytes)
    assert sizes == [4032 + 64, 1_000_064, 1_000_064, 1_000_064]
    checkpoint.wait()
    checkpoint._close()
    assert checkpoint._of_torch()._staging.bytes == 0


def test_without_memory_for_a_copy_the_training_waits(
    checkpoint: DummyCheckpointContext,
    gate: Gate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(_staging, "available_bytes", lambda: 10 << 20)
    gate.open.set()
    fits = torch.ones(1 << 20)
    assert checkpoint.save_state({"w": fits}) is not None
    checkpoint.wait()
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        uuid = checkpoint.save_state({"w": torch.ones(4 << 20)})
    # It is there without a wait, and no memory was taken for it.
    assert uuid in stored(tmp_path)
    assert checkpoint._of_torch()._staging.bytes == 4 << 20
    (record,) = caplog.records
    assert "takes 16 MiB of memory, and 12 MiB may be taken" in record.getMessage()


@pytest.mark.parametrize("stopped", ["closed", "not closed", "ctrl-c"])
def test_the_end_waits(tmp_path: Path, stopped: str) -> None:
    script = f"""
import os, signal, time
import torch
from determined import core
from determined.storage import build

context = core.init(checkpoint_storage={str(tmp_path / "storage")!r})
finish = context.checkpoint._storage.finish
def slow(*args):
    time.sleep(0.5)
    finish(*args)
context.checkpoint._storage.finish = slow
if {stopped == "not closed"}:
    context.checkpoint.save_state({{"w": torch.ones(3)}})
else:
    with context:
        context.checkpoint.save_state({{"w": torch.ones(3)}})
        if {stopped == "ctrl-c"}:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert ("KeyboardInterrupt" in done.stderr) == (stopped == "ctrl-c"), done.stderr
    (uuid,) = stored(tmp_path)
    assert torch.load(tmp_path / "storage" / uuid / "state.pt")["w"].tolist() == [1, 1, 1]


SHARDS = """
import json, os, sys
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
import determined as det
from determined.core import _staging

folder, busy, memory = sys.argv[1:4]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
if memory == "rank 1 has none" and rank == 1:
    _staging.available_bytes = lambda: 0


def made():
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def step(model, optimizer, number):
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * number + rank))
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item().hex()


def state_of(model, optimizer, steps):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "steps": steps, "rng-%d" % rank: torch.get_rng_state()}


with det.core.init(
    distributed=det.core.DistributedContext.from_torch_distributed(), checkpoint_storage=folder
) as context:
    model, optimizer = made()
    losses, uuids = [], []
    for number in range(12):
        losses.append(step(model, optimizer, number))
        # Calls of the training's own, beside those of the background.
        context.distributed.allgather(number)
        torch.distributed.all_reduce(torch.ones(1))
        if number % 3 == 2:
            uuids.append(
                context.checkpoint.save_state(
                    state_of(model, optimizer, number + 1), {"rank": {str(rank): 1}}, shard=True, busy=busy
                )
            )
    context.checkpoint.wait()
    uuids = [uuid for uuid in uuids if uuid]
    for uuid in uuids:
        model, optimizer = made()
        step(model, optimizer, 0)
        state = state_of(model, optimizer, 0)
        with context.checkpoint.restore_path(uuid) as path:
            dcp.load(state, checkpoint_id=path)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        begin = state["steps"]
        assert torch.equal(state["rng-%d" % rank], torch.get_rng_state())
        assert [step(model, optimizer, number) for number in range(begin, 12)] == losses[begin:]
    if rank == 0:
        print(json.dumps([uuids, context.checkpoint.get_metadata(uuids[0])]))
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("busy", "memory"), [("wait", "all have"), ("skip", "all have"), ("wait", "rank 1 has none")]
)
def test_shards_of_several_processes(tmp_path: Path, busy: str, memory: str) -> None:
    """FSDP2 on gloo, from a checkpoint of every kind: losses bit for bit."""
    (tmp_path / "train.py").write_text(SHARDS)
    launch = [sys.executable, "-m", "determined.launch.torch_distributed", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, "--", sys.executable, "train.py", str(tmp_path / "storage"), busy, memory],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if "[[" in line)
    uuids, metadata = json.loads(line[line.index("[[") :])
    assert len(uuids) == 4 if busy == "wait" else uuids
    assert metadata == {"rank": {"0": 1, "1": 1}}
    assert stored(tmp_path) == sorted(uuids)
    assert ("may be taken" in done.stdout + done.stderr) == (memory != "all have")
    names = {path.name for path in (tmp_path / "storage" / uuids[0]).iterdir()}
    assert names >= {".metadata", "__0_0.distcp", "__1_0.distcp", "metadata.json"}


SHARDED_TENSORS = """
import sys, warnings
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
import determined as det

warnings.simplefilter("ignore")
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
distributed = det.core.DistributedContext.from_torch_distributed()


def made():
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def step(model, optimizer, number):
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * number + rank))
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item().hex()


with det.core.init(distributed=distributed, checkpoint_storage="storage") as context:
    model = made()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number in range(3):
        step(model, optimizer, number)
    weights, moments = get_state_dict(model, optimizer)
    assert all(isinstance(one, ShardedTensor) for one in weights.values())
    state = {"model": weights, "optimizer": moments}
    dcp.save(state, checkpoint_id="plain")
    uuid = context.checkpoint.save_state(state, shard=True)
    assert uuid is not None
    for one in weights.values():
        for shard in one.local_shards():
            shard.tensor.zero_()
    context.checkpoint.wait()
    name = f"__{rank}_0.distcp"
    assert open(f"storage/{uuid}/{name}", "rb").read() == open(f"plain/{name}", "rb").read()
    ours, plain = (dcp.FileSystemReader(path).read_metadata() for path in (f"storage/{uuid}", "plain"))
    assert ours.state_dict_metadata == plain.state_dict_metadata
    assert ours.storage_data == plain.storage_data
torch.distributed.destroy_process_group()
print("rank", rank, "is right")
"""


def test_sharded_tensors(tmp_path: Path) -> None:
    """Of FSDP1: the files are those of torch.distributed.checkpoint.save at the call."""
    (tmp_path / "train.py").write_text(SHARDED_TENSORS)
    launch = [sys.executable, "-m", "determined.launch.torch_distributed", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, "--", sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank 0 is right" in done.stdout
    assert "rank 1 is right" in done.stdout


def test_control_groups_count(tmp_path: Path) -> None:
    from determined.core import _memory

    own = tmp_path / "own"
    own.write_text("0::/legs/7\n")
    for name, limit in (("legs", "1000"), ("legs/7", "max")):
        folder = tmp_path / "groups" / name
        folder.mkdir(parents=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("900\n")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 300\n")
    assert _memory._left_in_groups(tmp_path / "groups", own) == [400]
    own.write_text("12:cpu,memory:/7\n")
    folder = tmp_path / "groups" / "memory" / "7"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("50")
    (folder / "memory.usage_in_bytes").write_text("60")
    assert _memory._left_in_groups(tmp_path / "groups", own) == [0]
