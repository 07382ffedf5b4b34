"""Scripts run unchanged off-cluster; core.init() on it; the launch layer; collectives of one."""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

import determined as det
from determined import _info, core, errors
from determined.core import _collective
from determined.launch import torch_distributed
from tests.waiting import TIMEOUT_S

SCRIPT = """
import logging, sys
import determined as det
from determined import core

def main(core_context, latest):
    steps = 0
    if latest is not None:
        with core_context.checkpoint.restore_path(latest) as path:
            steps = int((path / "steps").read_text())
        assert core_context.checkpoint.get_metadata(latest) == {"steps_completed": steps}
    for op in core_context.searcher.operations():
        while steps < op.length:
            steps += 1
            core_context.train.report_training_metrics(steps, {"loss": 1 / steps})
            op.report_progress(steps)
            if core_context.preempt.should_preempt():
                return
        core_context.train.report_validation_metrics(steps, {"loss": 1 / steps})
        op.report_completed(1 / steps)
    with core_context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
        (path / "steps").write_text(str(steps))
    print("uuid", uuid)
    assert core_context.train.get_experiment_best_validation() is None
    core_context.train.set_status("done")
    core_context.train.report_progress(1.0)
    core_context.train.set_metadata({"a": 1})
    (core_context.train.get_tensorboard_path() / "events").write_text("")
    core_context.profiler.on()
    core_context.profiler.off()
    core_context.alert("title")
    assert core_context.distributed.get_size() == 1

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    with core.init() as core_context:
        main(core_context, sys.argv[1] if len(sys.argv) > 1 else None)
"""


def run(arguments: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DET_")}
    env |= {"HOME": str(home), "XDG_DATA_HOME": str(home / "data")}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=env,
        cwd=home,
    )


def test_a_script_runs_unchanged_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    first = run(["train.py"], tmp_path)
    assert first.returncode == 0, first.stderr
    uuid = first.stdout.split()[-1]
    assert (tmp_path / "data" / "determined" / "checkpoints" / uuid / "steps").read_text() == "1"
    assert "validation metrics after 1 steps: {'loss': 1.0}" in first.stderr
    assert "INFO: [" in first.stderr
    second = run(["train.py", uuid], tmp_path)
    assert second.returncode == 0, second.stderr


def test_the_dummies_check_like_the_cluster(tmp_path: Path) -> None:
    with core.init(checkpoint_storage=str(tmp_path)) as context:
        assert context.info is None
        with pytest.raises(ValueError, match="is None"):
            context.train.report_training_metrics(1, {"loss": None})
        with pytest.raises(TypeError):
            context.train.report_training_metrics("1", {})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="progress"):
            context.train.report_progress(2)
        (op,) = list(_completed(context))
        assert op.length == 1
        with pytest.raises(RuntimeError, match="already"):
            op.report_completed(1.0)
        with pytest.raises(errors.CheckpointNotFound):
            context.checkpoint.get_metadata("none")
        with pytest.raises(TypeError, match="metadata must be a dict"):
            context.checkpoint.upload(tmp_path, "best")  # type: ignore[arg-type]
        uuid = context.checkpoint.upload(None, shard=True)
        context.checkpoint.delete(uuid)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["auto", "cpu", "gpu"])
def test_torchrun_knows_words_for_numbers_of_processes(word: str) -> None:
    assert torch_distributed.worker_count([f"--nproc_per_node={word}"]) == (1, True)
    assert torch_distributed.worker_count(["--nproc-per-node", word, "--standalone"]) == (1, True)


@pytest.mark.parametrize(("rank", "warned"), [("0", 0), ("1", 1)])
def test_a_worker_that_takes_itself_for_the_chief_is_warned(
    rank: str,
    warned: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("RANK", rank)
    core.init(checkpoint_storage=str(tmp_path))
    assert caplog.text.count("without distributed= in the process of rank 1") == warned
    core.init(checkpoint_storage=str(tmp_path), distributed=core.DummyDistributedContext())
    assert caplog.text.count("without distributed=") == warned


def test_init_lists_the_kinds_of_storage(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a path or a URL as text, or a dict.*found PosixPath"):
        core.init(checkpoint_storage=tmp_path)  # type: ignore[arg-type]


def _completed(context: core.Context) -> list[core.SearcherOperation]:
    operations = []
    for op in context.searcher.operations():
        op.report_completed(0.0)
        operations.append(op)
    return operations


def test_invalid_hp_passes_through_the_dummies(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(det.InvalidHP), core.init():
        raise det.InvalidHP
    assert "INVALID_HP" in caplog.text


# On the cluster.


@pytest.fixture
def on_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a trial whose service does not exist; the storage path is returned."""
    storage = tmp_path / "storage"
    config = {"checkpoint_storage": {"type": "shared_fs", "host_path": str(storage)}}
    env = {
        "DET_MASTER": "http://127.0.0.1:9",
        "DET_CLUSTER_ID": "c",
        "DET_AGENT_ID": "a",
        "DET_SLOT_IDS": "[0]",
        "DET_TASK_ID": "1.x",
        "DET_ALLOCATION_ID": "1.x.1",
        "DET_SESSION_TOKEN": "t",
        "DET_TASK_TYPE": "TRIAL",
        "DET_TRIAL_ID": "1",
        "DET_EXPERIMENT_ID": "1",
        "DET_TRIAL_SEED": "0",
        "DET_HPARAMS": "{}",
        "DET_EXPERIMENT_CONFIG": json.dumps(config),
        "DET_RUN_DIR": str(tmp_path),
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_info, "_loaded", [])
    return storage


def test_init_on_the_cluster_sends_no_request_and_leaves_nothing(
    on_cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def connect(_: socket.socket, address: object) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", connect)
    with core.init() as context:
        assert context.info is not None
    assert asked == []
    assert list(on_cluster.iterdir()) == []


def test_init_refuses_a_storage_that_cannot_be_written(
    on_cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cluster.write_text("a file, not a directory")
    with pytest.raises(errors.StorageError, match="cannot write"):
        core.init()
    other = core.init(checkpoint_storage=str(tmp_path / "other"))
    other.close()
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", '{"checkpoint_storage": {"type": "hdfs"}}')
    monkeypatch.setattr(_info, "_loaded", [])
    with pytest.raises(errors.StorageError, match="'hdfs' is not supported"):
        core.init()


def test_sigusr1_prints_the_stacks(tmp_path: Path) -> None:
    code = (
        "import os, signal, determined as det\n"
        "context = det.core.init(checkpoint_storage='/tmp')\n"
        "def stuck(): os.kill(os.getpid(), signal.SIGUSR1)\n"
        "stuck(); print('alive')"
    )
    done = run(["-c", code], tmp_path)
    assert (done.returncode, done.stdout) == (0, "alive\n")
    assert "in stuck" in done.stderr


# Workers.


def test_collectives_of_one_worker() -> None:
    with core.DummyDistributedContext() as dist:
        assert (dist.get_rank(), dist.get_local_rank(), dist.get_size()) == (0, 0, 1)
        assert dist.get_num_agents() == 1
        thing = object()
        assert dist.gather(thing) == dist.gather_local(thing) == [thing]
        assert dist.allgather(thing) == dist.allgather_local(thing) == [thing]
        assert dist.broadcast(thing) is dist.broadcast_local(thing) is thing
    with pytest.raises(RuntimeError, match="closed"):
        dist.broadcast(1)


def test_ranks_by_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="rank"):
        core.DistributedContext(
            rank=1, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1
        )
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="RANK"):
        core.DistributedContext.from_torch_distributed()
    hvd = type("hvd", (), {name: staticmethod(lambda: 0) for name in ("rank", "local_rank")})
    for name in ("size", "local_size", "cross_size"):
        setattr(hvd, name, staticmethod(lambda: 1))
    hvd.cross_rank = staticmethod(lambda: 0)  # type: ignore[attr-defined]
    assert core.DistributedContext.from_horovod(hvd).size == 1


def test_from_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    tensorflow = types.ModuleType("tensorflow")
    tensorflow.distribute = types.SimpleNamespace(get_strategy=lambda: "strategy")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    context, strategy = core.DistributedContext.from_tf_config()
    assert (context.rank, context.size, strategy) == (0, 1, "strategy")
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    monkeypatch.setattr(_collective, "RENDEZVOUS_S", 0.0)
    with pytest.raises(TimeoutError, match="the chief did not listen at a:"):
        core.DistributedContext.from_tf_config()


# The launch layer.

WORKER = """
import sys, helper
from determined.core import DistributedContext
dist = DistributedContext.from_torch_distributed()
print(__name__, dist.rank, dist.size, sys.argv[1:], helper.value)
sys.exit(3)
"""


@pytest.mark.parametrize(
    "command",
    [
        ["work/train.py"],
        ["--", "work/train.py"],
        ["--nproc_per_node=1", "--nnodes", "1", "--", "python3", "work/train.py"],
    ],
)
def test_torch_distributed_runs_the_script(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text(WORKER)
    (tmp_path / "work" / "helper.py").write_text("value = 7\n")
    launcher = ["-m", "determined.launch.torch_distributed"]
    done = run([*launcher, *command, "a", "--", "--b"], tmp_path)
    assert done.stdout == "__main__ 0 1 ['a', '--', '--b'] 7\n", done.stderr
    assert done.returncode == 3


def test_torch_distributed_runs_modules_and_programs(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys; print(__name__, sys.argv[1:])\n")
    launcher = ["-m", "determined.launch.torch_distributed"]
    assert run([*launcher, "python3", "-m", "mod", "x"], tmp_path).stdout == "__main__ ['x']\n"
    assert run([*launcher, "sh", "-c", "echo $WORLD_SIZE"], tmp_path).stdout == "1\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trial", "model:Net"], "--trial model:Net works only on the cluster"),
        (["--", "--trial=model:Net"], "--trial model:Net works only on the cluster"),
        ([], "no script"),
        (["x.py"], "there is no script 'x.py'"),
        (["--nproc-per-node=many", "--", "x.py"], "a number of processes"),
        (["no-such-program"], "no program 'no-such-program'"),
    ],
)
def test_torch_distributed_names_the_mistake(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(SystemExit) as caught:
        torch_distributed.main(arguments)
    assert caught.value.code == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("stderr", ["None", "io.StringIO()"])
def test_stacks_are_kept_elsewhere_if_stderr_is_not_a_file(tmp_path: Path, stderr: str) -> None:
    code = (
        f"import io, os, signal, sys, determined as det\nsys.stderr = {stderr}\n"
        "with det.core.init(checkpoint_storage='/tmp'):\n    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print('went on')\n"
    )
    done = run(["-c", code], tmp_path)
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert "most recent call first" in done.stderr


def test_a_context_is_not_sent_to_another_process() -> None:
    with core.init() as context, pytest.raises(TypeError, match=r"by determined\.launch"):
        pickle.dumps(context)
