"""The user's view of a training script that does not end well."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.local_cluster import LocalCluster
from tests.outcomes import CONFIG, Case, Outcome, outcomes, script
from tests.processes import is_alive
from tests.waiting import TIMEOUT_S, until

STORES = """
import determined as det
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        with core_context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "weights").write_bytes(bytes(20 << 20))
        core_context.train.report_validation_metrics(op.length, {"x": 1.0})
        op.report_completed(1.0)
"""


# torch puts its rank before the traceback.
BROKEN_RANK = """
import torch.distributed as dist
import determined as det
dist.init_process_group("gloo")
workers = det.core.DistributedContext.from_torch_distributed()
with det.core.init(distributed=workers):
    if workers.rank == 1:
        raise RuntimeError("rank one is broken")
    dist.barrier()
"""


def with_context(body: str) -> str:
    """A script with ``body`` inside of the Core API's context."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"import determined as det\nwith det.core.init() as core_context:\n{lines}\n"


@dataclass(frozen=True)
class Failure:
    """``reason`` and ``log`` are patterns, to be found in the trial's reason and in its logs."""

    case: Case
    reason: str
    log: str = ""
    state: str = "ERROR"


FAILURES = {
    # The script.
    "raises": Failure(
        script("def f():\n    raise ValueError('no luck')\nf()"),
        r"^process exited with code 1: ValueError: no luck "
        r"\(script.py, line 2: raise ValueError\('no luck'\)\)$",
        r'(?s)Traceback.*File "\S*/script.py", line 2, in f\n.*ValueError: no luck',
    ),
    "raises-inside": Failure(
        script(with_context("raise OSError('inside')")),
        r"code 1: OSError: inside \(script.py, line 3: ",
        "Traceback",
    ),
    "syntax": Failure(
        script("print('a'\n"),
        r"code 1: SyntaxError: .* was never closed \(script.py, line 1: ",
        r'script.py", line 1',
    ),
    "exits-3": Failure(script("raise SystemExit(3)"), r"^process exited with code 3$"),
    "exits-with-words": Failure(
        script("import sys; sys.exit('no data')"),
        r"^process exited with code 1: last line of stderr: no data$",
        r"^no data$",
    ),
    "wrong-arguments": Failure(
        script(
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', required=True)\n"
            "p.parse_args()"
        ),
        r"code 2: last line of stderr: .*error: the following arguments are required: --lr$",
    ),
    "broken-rank": Failure(
        script(
            BROKEN_RANK,
            entrypoint="python3 -m determined.launch.torch_distributed python3 script.py",
            more="resources: {slots_per_trial: 2}\n",
        ),
        r"^process exited with code 1: rank 1: RuntimeError: rank one is broken"
        r" \(script.py, line 8: raise RuntimeError\(.*\)\)$",
        r"^\[rank1\]: RuntimeError: rank one is broken$",
    ),
    "reads-stdin": Failure(script("input('go on? ')"), r"code 1: EOFError", "EOFError"),
    "memory-error": Failure(
        script(
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
            "bytearray(4 << 30)"
        ),
        r"code 1: MemoryError \(script.py, line 3: ",
        "MemoryError",
    ),
    "killed": Failure(
        script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        r"^process was killed by signal 9 \(SIGKILL\), perhaps out of memory$",
    ),
    "segmentation-fault": Failure(
        script("import ctypes; ctypes.string_at(0)"),
        r"^process was killed by signal 11 \(SIGSEGV\)$",
        r"(?s)Segmentation fault.*/script.py.*, line 1 in <module>",
    ),
    # The entrypoint and the files beside it.
    "no-script": Failure(
        Case(entrypoint="python3 absent.py"), "absent.py is not in the model def", "absent.py"
    ),
    "no-program": Failure(
        Case(entrypoint="no-such-program --flag"), "no command 'no-such-program'", "no-such-program"
    ),
    "no-module": Failure(
        Case(entrypoint="python3 -m no_such_module"), "no module named 'no_such_module'"
    ),
    "shell-text": Failure(
        script("print('so far, so good')", entrypoint="python3 script.py && false"),
        r"exited with code 1",
        "so far, so good",
    ),
    "startup-hook": Failure(
        Case({"script.py": "", "startup-hook.sh": "echo hooked\nexit 4\n"}),
        r"startup-hook.sh failed with exit code 4",
        "hooked",
    ),
    # Wrong use of the Core API.
    "refused-report": Failure(
        script(with_context("core_context.train.report_training_metrics(5, {'x' * 2000: 1})")),
        r"ReportRefused: .*the name of the metric .*2000 bytes found",
    ),
    "steps": Failure(
        script(with_context("core_context.train.report_training_metrics(2**63, {'x': 1})")),
        r"ValueError: steps_completed must be a number of batches from 0 to 9223372036854775807",
    ),
    "no-value": Failure(
        script(with_context("core_context.train.report_training_metrics(1, {'x': None})")),
        r"metric 'x' is None",
    ),
    "completed-twice": Failure(
        script(
            with_context(
                "for op in core_context.searcher.operations():\n"
                "    op.report_completed(1.0)\n    op.report_completed(1.0)"
            )
        ),
        r"report_completed\(\) was called already",
    ),
    "unknown-checkpoint": Failure(
        script(with_context("core_context.checkpoint.download('absent', 'here')")),
        r"no checkpoint absent in /",
    ),
    "storage-below-a-file": Failure(
        script(STORES, more="checkpoint_storage: {type: shared_fs, host_path: /dev/null/x}\n"),
        r"checkpoint storage: cannot write /dev/null/x",
    ),
    # No errors, but worth a word.
    "does-nothing": Failure(
        script("print('done')"), "ended before the searcher's target", "done", "COMPLETED"
    ),
    "invalid-hyperparameters": Failure(
        script(with_context("raise det.InvalidHP('too wide')"), max_restarts=3),
        "called its hyperparameters invalid",
        "InvalidHP: too wide",
        "COMPLETED",
    ),
}  # fmt: skip


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[bool]:
    """A separate small file system at ``folder``; False where this user may not mount."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


DISKS = {
    "disk-full": ("size=4m", "No space left on device"),
    "disk-read-only": ("size=4m,ro", "checkpoint storage: cannot write .*Read-only file system"),
}


@pytest.fixture(scope="module")
def ended(
    cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Outcome]]:
    """The end of each case; the cases of :data:`DISKS` exist if they could be mounted."""
    folder = tmp_path_factory.mktemp("failures")
    cases = {name: failure.case for name, failure in FAILURES.items()}
    with contextlib.ExitStack() as stack:
        for name, (options, _) in DISKS.items():
            place = folder / f"mounted-{name}"
            if stack.enter_context(mounted(place, options)):
                storage = f"checkpoint_storage: {{type: shared_fs, host_path: {place}}}\n"
                cases[name] = script(STORES, more=storage)
        yield outcomes(cluster, folder, cases)


@pytest.mark.parametrize("name", FAILURES)
def test_the_reason_is_said(ended: dict[str, Outcome], name: str) -> None:
    failure, found = FAILURES[name], ended[name]
    assert found.state == failure.state
    assert found.trial["state"] == f"STATE_{failure.state}"
    assert re.search(failure.reason, found.trial["reason"])
    assert re.search(failure.log, found.text, re.MULTILINE)
    if failure.state == "ERROR":
        assert found.reason == f"trial {found.trial['id']}: {found.trial['reason']}"
        # The log alone also shows the end; the service does not repeat the script's output.
        reason = found.trial["reason"].removeprefix("could not start: ")
        words, *said = re.split(
            r"(?<=code \d): (?:rank \d+: )?(?:last line of stderr: )?", reason, maxsplit=1
        )
        exception = said[0] if said else ""
        # Without the place in the user's file, which the traceback names in its own way.
        exception = re.sub(r" \([^()]+, line \d+: .*\)$", "", exception)
        assert words in found.text
        assert not said or found.text.count(exception) == 1


@pytest.mark.parametrize("name", DISKS)
def test_a_disk_that_takes_no_checkpoint(
    cluster: LocalCluster, ended: dict[str, Outcome], name: str
) -> None:
    if name not in ended:
        pytest.skip("mounting a file system of its own needs root")
    found = ended[name]
    assert found.state == "ERROR"
    assert re.search(DISKS[name][1], found.trial["reason"])
    # Nothing that looks like a checkpoint is left.
    assert cluster.json("experiment", "list-checkpoints", str(found.experiment_id)) == []


def test_flow_run_ends_with_the_error(cluster: LocalCluster, tmp_path: Path) -> None:
    case = FAILURES["raises"].case
    config, model = case.write(tmp_path, "raises")
    done = cluster.det("flow", "run", str(config), str(model), check=False)
    assert done.returncode == 1
    trial = re.search(r"all of its logs: det t logs (\d+)$", done.stderr, re.MULTILINE)
    assert trial, done.stderr
    assert "ValueError: no luck" in done.stderr
    assert re.search(rf"^reason: trial {trial[1]}: process exited", done.stdout, re.MULTILINE)
    assert "ValueError: no luck" in cluster.det("trial", "logs", trial[1]).stdout


WRONG_PATH = """
import determined as det

def read(path):
    return open(path).read()

with det.core.init():
    read("/no/such/table.csv")
"""


def test_a_search_whose_every_trial_fails_is_given_up(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    config = CONFIG.format(
        name="wrong-path", entrypoint="python3 script.py", max_restarts=0
    ).replace(
        "{name: single, metric: x, max_length: 1}",
        "{name: random, metric: x, max_length: 1, max_trials: 500, max_concurrent_trials: 2}",
    )
    assert "max_trials: 500" in config
    (tmp_path / "wrong.yaml").write_text(f"{config}max_failures: 3\n")
    model = tmp_path / "model"
    model.mkdir()
    (model / "script.py").write_text(WRONG_PATH)
    done = cluster.det("flow", "run", str(tmp_path / "wrong.yaml"), str(model), check=False)
    assert done.returncode == 1
    reason = (
        "did: process exited with code 1: FileNotFoundError: [Errno 2] No such file or directory: "
        "'/no/such/table.csv' (script.py, line 5: return open(path).read()). Correct the cause and submit "
        "again; the limit is max_failures (3; null = none)"
    )
    shown = " ".join((done.stdout + done.stderr).split())
    assert (
        "3 trials in a row failed before any trial reported a metric, all of them as trial" in shown
    )
    assert reason in shown
    experiment = cluster.json("experiment", "list")[-1]["id"]
    found = cluster.describe(experiment)
    assert (found["state"], found["reason"].endswith(reason)) == ("STATE_ERROR", True)
    states = [trial["state"] for trial in cluster.trials(experiment)]
    assert states.count("ERROR") == 3
    assert set(states) <= {"ERROR", "CANCELED"}


def test_a_failed_trial_is_restarted(cluster: LocalCluster, tmp_path: Path) -> None:
    failing = script("raise SystemExit(5)", max_restarts=2)
    found = outcomes(cluster, tmp_path, {"failing": failing})["failing"]
    assert found.state == "ERROR"
    assert found.trial["restarts"] == 2  # no restart follows the last failure
    described = cluster.json("trial", "describe", str(found.trial["id"]))
    assert [leg["runId"] for leg in described["legs"]] == [1, 2, 3]


def test_a_restart_goes_on_from_the_checkpoint(cluster: LocalCluster, tmp_path: Path) -> None:
    text = """
import os
import determined as det
info = det.get_cluster_info()
with det.core.init() as core_context:
    if info.latest_checkpoint is None:
        for steps in (1, 2):
            with core_context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
                (path / "note").write_text(f"after {steps} steps")
        # A checkpoint that is gone is not what the next leg starts from.
        core_context.checkpoint.delete(uuid)
        os._exit(7)
    with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
        print("found:", (path / "note").read_text())
    for op in core_context.searcher.operations():
        core_context.train.report_validation_metrics(op.length, {"x": 1.0})
        op.report_completed(1.0)
"""
    found = outcomes(cluster, tmp_path, {"case": script(text, max_restarts=1)})["case"]
    assert found.state == "COMPLETED"
    assert "found: after 1 steps" in found.text


HANGS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
children = [
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]),
    subprocess.Popen(["setsid", "sleep", "600"]),
]
print(os.getpid(), *(child.pid for child in children), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("noun", ["experiment", "trial"])
def test_kill_ends_every_process_of_a_script_that_hangs(
    cluster: LocalCluster, tmp_path: Path, noun: str
) -> None:
    config = CONFIG.format(name="hangs", entrypoint="python3 script.py", max_restarts=3)
    experiment = cluster.submit(tmp_path, config, script_py=HANGS)

    def pids_in_log() -> list[int]:
        printed = cluster.det("experiment", "logs", str(experiment), check=False).stdout
        found = re.search(r"\|\| ([\d ]+)$", printed)
        return [int(pid) for pid in found[1].split()] if found else []

    pids = until("the line with the process ids", pids_in_log)
    assert len(pids) == 3
    (trial,) = cluster.trials(experiment)
    cluster.det(noun, "kill", str(experiment if noun == "experiment" else trial["id"]))
    assert cluster.wait(experiment, timeout=TIMEOUT_S) == "CANCELED"
    assert cluster.trials(experiment)[0]["reason"] == "killed by the user"
    assert not [pid for pid in pids if is_alive(pid)]
