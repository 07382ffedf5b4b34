"""The command lines of DeepSpeed's and Horovod's launchers; TensorFlow's environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import TIMEOUT_S

# Replaces the real programs: records their arguments.
PROBE = f"""#!{sys.executable}
import json, os, sys
names = ("USE_DEEPSPEED", "USE_HOROVOD", "DET_CHIEF_IP", "TF_CONFIG", "LOCAL_SIZE")
print(json.dumps({{"argv": sys.argv[1:], **{{n: os.environ[n] for n in names if n in os.environ}}}}))
"""
WRAP = [sys.executable, "-m", "determined.launch.wrap_rank"]


def environment(
    folder: Path, addresses: list[str], slots: int = 2, **config: object
) -> dict[str, str]:
    """A container's on a cluster, on which fake packages are installed."""
    for package, program in (("deepspeed", "deepspeed"), ("horovod", "horovodrun")):
        (folder / "packages" / package).mkdir(parents=True, exist_ok=True)
        (folder / "packages" / package / "__init__.py").touch()
        (folder / program).write_text(PROBE)
        (folder / program).chmod(0o755)
    (folder / "info").mkdir(exist_ok=True)
    meeting = {
        "container_addrs": addresses,
        "container_rank": len(addresses) - 1,
        "container_slot_counts": [slots] * len(addresses),
    }
    (folder / "info" / "rendezvous_info.json").write_text(json.dumps(meeting))
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": f"{folder / 'packages'}:{os.environ.get('PYTHONPATH', '')}",
        "DET_MASTER": "http://127.0.0.1:1",
        "DET_CLUSTER_ID": "c",
        "DET_AGENT_ID": "a",
        "DET_SLOT_IDS": json.dumps(list(range(slots))),
        "DET_TASK_ID": "t",
        "DET_ALLOCATION_ID": "t.1",
        "DET_SESSION_TOKEN": "secret",
        "DET_TASK_TYPE": "TRIAL",
        "DET_TRIAL_ID": "1",
        "DET_EXPERIMENT_ID": "1",
        "DET_TRIAL_SEED": "1",
        "DET_HPARAMS": "{}",
        "DET_EXPERIMENT_CONFIG": json.dumps(config),
        "DET_RUN_DIR": str(folder),
    }


def launch(launcher: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"determined.launch.{launcher}", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_deepspeed(tmp_path: Path) -> None:
    env = environment(tmp_path, ["127.0.0.1"])
    done = launch("deepspeed", "--num_gpus", "1", "--", "python3", "t.py", "--lr", "1", env=env)
    assert done.returncode == 0, done.stderr
    called = json.loads(done.stdout)
    port = called["argv"].pop(3)
    assert 1024 <= int(port) <= 65535
    assert called == {
        "argv": [
            *("--master_addr", "localhost", "--master_port"),
            *("--no_python", "--no_local_rank", "--no_ssh_check"),
            *("--num_gpus", "1", *WRAP, "RANK", "--", "python3", "t.py", "--lr", "1"),
        ],
        "USE_DEEPSPEED": "1",
        "DET_CHIEF_IP": "127.0.0.1",
        "LOCAL_SIZE": "2",
    }
    done = launch("deepspeed", "--trial", "model_def:T", env=env)
    assert (
        json.loads(done.stdout)["argv"][-4:]
        == [*("--", sys.executable, "-m", "determined.pytorch._run", "model_def:T")][-4:]
    )


@pytest.mark.parametrize(
    ("optimizations", "words"),
    [
        (
            {"tensor_fusion_threshold": 32},
            [
                *(
                    "--fusion-threshold-mb",
                    "32",
                    "--cycle-time-ms",
                    "1",
                    "--cache-capacity",
                    "1024",
                ),
                *("--no-hierarchical-allreduce", "--no-hierarchical-allgather"),
            ],
        ),
        ({"auto_tune_tensor_fusion": True}, ["--autotune"]),
    ],
)
def test_horovod(tmp_path: Path, optimizations: dict[str, object], words: list[str]) -> None:
    env = environment(tmp_path, ["127.0.0.1"], optimizations=optimizations)
    done = launch("horovod", "--verbose", "--", "t.py", env=env)
    assert done.returncode == 0, done.stderr
    called = json.loads(done.stdout)
    ranks = "HOROVOD_RANK,OMPI_COMM_WORLD_RANK,PMI_RANK"
    assert called == {
        "argv": [
            *("-np", "2", "-p", "12350", "-H", "localhost:2", "--start-timeout", "1200"),
            *("--gloo-timeout-seconds", "240", *words, "--verbose"),
            *(*WRAP, ranks, "--", sys.executable, "t.py"),
        ],
        "USE_HOROVOD": "1",
        "DET_CHIEF_IP": "127.0.0.1",
    }


def test_one_slot_needs_no_horovod(tmp_path: Path) -> None:
    env = environment(tmp_path, ["127.0.0.1"], slots=1)
    env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    done = launch("horovod", "--autohorovod", "echo", "alone", env=env)
    assert done.stdout == "alone\n", done.stderr


def test_tensorflow(tmp_path: Path) -> None:
    env = environment(tmp_path, ["10.0.0.1", "10.0.0.2"])
    done = launch("tensorflow", "--port", "5000", "--", "sh", "-c", "echo $TF_CONFIG", env=env)
    assert done.returncode == 0, done.stderr
    rank, _, text = done.stdout.partition(" ")
    assert rank == "[rank=1]"
    assert json.loads(text) == {
        "cluster": {"worker": ["10.0.0.1:5000", "10.0.0.2:5000"]},
        "task": {"type": "worker", "index": 1},
    }
    alone = launch(
        "tensorflow", "sh", "-c", "echo $TF_CONFIG.", env=environment(tmp_path, ["127.0.0.1"])
    )
    assert alone.stdout == ".\n"


@pytest.mark.parametrize("launcher", ["deepspeed", "horovod"])
def test_missing_parts_are_named(tmp_path: Path, launcher: str) -> None:
    env = environment(tmp_path, ["127.0.0.1"])
    without = {**env, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    several = environment(tmp_path / "several", ["10.0.0.1", "10.0.0.2"])
    off = {key: value for key, value in env.items() if not key.startswith("DET_")}
    for words, done in (
        (
            f"{launcher} is not installed: pip install {launcher}",
            launch(launcher, "t.py", env=without),
        ),
        ("on 2 machines needs ssh", launch(launcher, "t.py", env=several)),
        ("starts trials on a cluster", launch(launcher, "t.py", env=off)),
        ("no script was given to launch", launch(launcher, env=env)),
    ):
        assert done.returncode == 1
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
