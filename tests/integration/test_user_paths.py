"""A new user's first hour, from submitting to finding the results."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.integration.agent.test_recovery import begin, flow_process_of, legs_of
from tests.integration.prefect_server import Prefect
from tests.local_cluster import DET, LocalCluster
from tests.outcomes import GOOD, Case, Outcome, client, outcomes, script
from tests.waiting import TIMEOUT_S, until

# What training code may be and do. For each: the text that must be in its output.
WORKS: dict[str, tuple[Case, list[str]]] = {
    "module-of-a-package": (
        Case(
            {
                "package/__init__.py": "",
                "package/part/__init__.py": "",
                "package/part/help.py": "WORD = 'helped'",
                "package/part/main.py": "import sys\nfrom package.part.help import WORD\n"
                f"print(WORD, sys.argv[1:])\n{GOOD}",
            },
            "python3 -m package.part.main --fast",
        ),
        ["helped ['--fast']"],
    ),
    "list-entrypoint": (
        script(
            f"import sys\nprint(sys.argv[1:])\n{GOOD}",
            entrypoint='["python3", "script.py", "one word", "$HOME"]',
        ),
        ["['one word', '$HOME']"],
    ),
    "shell-text": (
        script(GOOD, entrypoint='"echo begin | tr a-z A-Z && python3 script.py | sed s/end/END/"'),
        ["BEGIN", "the END"],
    ),
    "environment-variables": (
        script(
            f"import os\nprint(os.environ['A'], repr(os.environ['B']))\n{GOOD}",
            more='environment: {environment_variables: ["A=x=y z", "B="]}\n',
        ),
        ["x=y z ''"],
    ),
    "startup-hook": (
        Case(
            {
                "script.py": f"import os\nprint('A is', os.environ['A'])\n{GOOD}",
                "startup-hook.sh": "echo hooked\nexport A=1\n",
            }
        ),
        ["hooked", "A is 1"],
    ),
    # Packages called like the platform's folders, modules called like installed ones.
    "own-names": (
        Case(
            {
                "flows/__init__.py": "",
                "flows/steps.py": "NAME = 'my flows'",
                "tasks/work.py": "NAME = 'my tasks'",
                "registry/__init__.py": "NAME = 'my registry'",
                "utils.py": "NAME = 'my utils'",
                "requests.py": "NAME = 'my requests'",
                "script.py": "import flows.steps, tasks.work, registry, utils, requests\n"
                "for one in (flows.steps, tasks.work, registry, utils, requests):\n"
                f"    print(one.NAME)\n{GOOD}",
            }
        ),
        ["my flows", "my tasks", "my registry", "my utils", "my requests"],
    ),
    "processes": (
        Case(
            {
                "good.py": GOOD,
                "script.py": "import multiprocessing, runpy\n"
                "def square(x):\n    return x * x\n"
                "if __name__ == '__main__':\n"
                "    for method in ('fork', 'spawn'):\n"
                "        with multiprocessing.get_context(method).Pool(2) as pool:\n"
                "            print(method, pool.map(square, [1, 2, 3]))\n"
                "    runpy.run_path('good.py')\n",
            }
        ),
        ["fork [1, 4, 9]", "spawn [1, 4, 9]"],
    ),
    "data-loader": (
        script(
            "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
            "if __name__ == '__main__':\n"
            "    data = TensorDataset(torch.arange(8))\n"
            "    loader = DataLoader(data, batch_size=4, num_workers=2)\n"
            f"    print([batch.tolist() for (batch,) in loader])\n{GOOD}"
        ),
        ["[[0, 1, 2, 3], [4, 5, 6, 7]]"],
    ),
    "odd-output": (
        script(
            "import sys\nout = sys.stdout.buffer\n"
            "out.write(b'x' * (1 << 20) + b'\\n')\n"
            "out.write(b'a\\0b\\n')\nout.write(b'bad \\xff\\xfe bytes\\n')\n"
            f"out.write('h\\u00e9llo \\u65e5\\u672c\\n'.encode())\nout.flush()\n{GOOD}"
        ),
        ["x" * (1 << 20), "a\0b", "bad \\xff\\xfe bytes", "héllo 日本"],
    ),
    "many-lines": (
        script(f"for n in range(5000):\n    print('line', n)\n{GOOD}"),
        [f"line {n}" for n in range(5000)],
    ),
    "levels": (
        script(
            "import logging, sys, warnings\nimport determined as det\n"
            "logging.basicConfig(level=logging.DEBUG, format=det.LOG_FORMAT)\n"
            "for name in ('debug', 'info', 'warning', 'error'):\n"
            "    getattr(logging, name)(f'a message of {name}')\n"
            f"warnings.warn('careful')\nprint('plain')\n{GOOD}"
        ),
        ["plain"],
    ),
    "leaves-processes": (
        script(
            "import subprocess, sys\n"
            "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
            "left = [subprocess.Popen(sleep), subprocess.Popen(['setsid', *sleep])]\n"
            f"print('left', *(one.pid for one in left))\n{GOOD}"
        ),
        [],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def worked(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    cases = {name: case for name, (case, _) in WORKS.items()}
    return outcomes(cluster, tmp_path_factory.mktemp("works"), cases)


@pytest.mark.parametrize("name", WORKS)
def test_it_works(worked: dict[str, Outcome], name: str) -> None:
    found = worked[name]
    assert found.state == "COMPLETED", found.text[-4000:]
    assert found.trial["searcherMetricValue"] == 1.0
    printed = found.lines("stdout")
    expected = [*WORKS[name][1]]
    assert [line for line in printed if line in set(expected)] == expected


def test_no_process_is_left_behind(worked: dict[str, Outcome]) -> None:
    printed = next(line for line in worked["leaves-processes"].lines("stdout") if "left" in line)
    assert not [pid for pid in printed.split()[1:] if psutil.pid_exists(int(pid))]


def test_a_scripts_own_log_is_not_drowned(worked: dict[str, Outcome]) -> None:
    """With logging at DEBUG, as Determined's own tutorials have it."""
    own = [line for line in worked["levels"].lines("stderr") if "a message of" not in line]
    assert all("careful" in line or "warnings.warn" in line for line in own), own


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--level", "WARNING"], ["a message of warning", "a message of error"]),
        (["--stdtype", "stdout"], ["plain", "the end"]),
        (["--stdtype", "stdout", "--head", "1"], ["plain"]),
        (["--stdtype", "stdout", "--tail", "1"], ["the end"]),
        (["--stdtype", "stdout", "--timestamp-before", "2001-01-01T00:00:00Z"], []),
        (["--stdtype", "stdout", "--timestamp-after", "2001-01-01T00:00:00Z", "-f"], ["plain", "the end"]),
    ],
)  # fmt: skip
def test_log_filters(
    cluster: LocalCluster, worked: dict[str, Outcome], options: list[str], expected: list[str]
) -> None:
    experiment = str(worked["levels"].experiment_id)
    printed = cluster.det("experiment", "logs", experiment, *options).stdout.splitlines()
    assert len(printed) == len(expected)
    assert all(end in line for line, end in zip(printed, expected, strict=True))


SEARCH = """\
name: search
entrypoint: python3 script.py
hyperparameters: {a: {type: categorical, vals: [1, 2, 3]}}
searcher: {name: grid, metric: x, smaller_is_better: false, max_concurrent_trials: 2, max_length: 1}
max_restarts: 0
"""

# Reports, stores a checkpoint, and waits for the file named on its command line, if any.
TRAINS = """
import os, sys, time
import determined as det
with det.core.init() as core_context:
    a = det.get_cluster_info().trial.hparams["a"]
    print("training with", a, flush=True)
    while sys.argv[1:] and not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    for op in core_context.searcher.operations():
        core_context.train.report_training_metrics(op.length, {"loss": 1.0 / a})
        core_context.train.report_validation_metrics(op.length, {"x": a})
        with core_context.checkpoint.store_path({"steps_completed": op.length}) as (path, uuid):
            (path / "weights").write_text(str(a))
        op.report_completed(a)
"""


def own_terminal() -> None:
    """Ctrl-C is a signal here; a shell's background job (these tests may be one) ignores it."""
    os.login_tty(0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """`det` at a separate terminal."""

    def __init__(self, cluster: LocalCluster, *args: str, cwd: Path | None = None) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*DET, *args],
            env={**cluster.env, "TERM": "xterm-256color"},
            cwd=cwd,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=own_terminal,
        )
        os.close(slave)
        self.shown = ""

    def read(self, until: Callable[[str], object], timeout_s: float = TIMEOUT_S) -> str:
        """Read until ``until`` holds for the whole output."""
        deadline = time.monotonic() + timeout_s
        while not until(self.shown):
            assert time.monotonic() < deadline, self.shown
            ready, _, _ = select.select([self._master], [], [], 0.2)
            if ready:
                try:
                    self.shown += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # the other end is closed; the process ends in a moment
                    time.sleep(0.02)
        return self.shown

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def end(self, timeout_s: float = TIMEOUT_S) -> int:
        """Read the rest of the output; returns the exit code."""
        try:
            self.read(lambda _: self.process.poll() is not None, timeout_s)
        finally:
            self.process.kill()
            os.close(self._master)
        return self.process.wait()


def test_ctrl_c_detaches_and_the_search_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    search = Case({"script.py": TRAINS})
    _, model = search.write(tmp_path, "search")
    (tmp_path / "search.yaml").write_text(SEARCH.replace("script.py", f"script.py {go}"))
    terminal = Terminal(cluster, "flow", "run", str(tmp_path / "search.yaml"), str(model))
    shown = terminal.read(lambda shown: "2 running" in shown)
    found = re.search(r"submitted experiment (\d+)", shown)
    assert found
    number = found[1]
    assert "Ctrl-C detaches" in shown
    terminal.press_ctrl_c()
    terminal.press_ctrl_c()
    assert terminal.end() == 130
    for hint in ("wait", "logs -f", "kill"):
        assert f"det e {hint} {number}" in terminal.shown
    assert "Traceback" not in terminal.shown

    listed = cluster.json("experiment", "list")
    assert {row["state"] for row in listed if row["id"] == int(number)} == {"STATE_RUNNING"}
    back = Terminal(cluster, "experiment", "wait", number)
    back.read(lambda shown: "2 running" in shown)
    go.touch()
    assert back.end() == 0
    assert f"experiment {number}: COMPLETED" in back.shown
    assert "training with 3" in cluster.det("experiment", "logs", "-f", number).stdout
    described = cluster.describe(int(number))
    assert (described["numTrials"], described["bestTrialSearcherMetric"]) == (3, 3.0)


def test_two_runs_at_once_from_a_folder_with_names_of_ours(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    mine = "raise RuntimeError('a module of the working directory was imported')\n"
    for name in ("flows", "tasks", "registry", "determined_flows", "service"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(mine)
    for name in ("typer", "prefect", "yaml", "httpx"):
        (tmp_path / f"{name}.py").write_text(mine)
    model = tmp_path / "model"
    model.mkdir()
    (model / "script.py").write_text(TRAINS)
    (tmp_path / "search.yaml").write_text(SEARCH)
    # As it is installed: `python -m` would put the working directory first.
    det = [str(Path(sys.executable).with_name("det")), "flow", "run", "search.yaml", "model"]
    runs = [
        subprocess.Popen(
            det, env=cluster.env, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=2
        )
        for _ in range(2)
    ]
    for run in runs:
        printed, _ = run.communicate(timeout=TIMEOUT_S)
        assert run.returncode == 0
        assert "COMPLETED" in printed
        assert "x: 3" in printed


CONFIG = """\
name: broken
entrypoint: python3 -m script
hyperparameters:
  lr: 0.1
searcher:
  name: single
  metric: loss
  max_length: 10
max_restarts: 0
"""

BROKEN = {
    # the correct text, the typed text, and the message
    "misspelled": ("metric:", "metirc:", "7: searcher.metirc: unknown field for name: single; did"
                   " you mean 'metric'?"),
    "searcher": ("single", "signle", "6: searcher.name: found 'signle'; did you mean 'single'?"),
    "missing": ("entrypoint: python3 -m script\n", "", " entrypoint: required field is missing"),
    "type": ("max_restarts: 0", "max_restarts: many", "9: max_restarts: expected an integer, found"
             " 'many'"),
    "range": ("max_restarts: 0", "max_restarts: -1", "9: max_restarts: must be at least 0, found -1"),
    "empty-range": ("lr: 0.1", "lr: {type: double, minval: 1, maxval: 0}", "4: hyperparameters.lr."
                    "minval: minval must be less than maxval"),
    "length": ("max_length: 10", "max_length: {epcohs: 1}", "8: searcher.max_length.epcohs: unknown"
               " field; did you mean 'epochs'?"),
    "tab": ("  lr: 0.1", "\tlr: 0.1", "4: a tab in column 1"),
    "duplicate": ("max_restarts: 0", "name: again", "9: name: duplicate key (first on line 1)"),
    "not-yaml": ("name: broken", "name: [broken", "not YAML: expected"),
    "pool": ("max_restarts: 0", "resources: {resource_pool: moon}", "resources.resource_pool: there"
             " is no resource pool 'moon' (allowed: default)"),
    "slots": ("max_restarts: 0", "resources: {slots_per_trial: 64}", "resources.slots_per_trial: 64"
              " slots are more than any agent of the resource pool 'default' has"),
}  # fmt: skip
"""Twelve different mistakes; the last two can be known by the cluster only."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_configuration_gets_one_clear_message(
    cluster: LocalCluster, tmp_path: Path, name: str
) -> None:
    good, bad, message = BROKEN[name]
    path = tmp_path / "config.yaml"
    assert CONFIG.count(good) == 1
    path.write_text(CONFIG.replace(good, bad))
    done = cluster.det("flow", "run", str(path), check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_sdk(cluster: LocalCluster, tmp_path: Path) -> None:
    case = Case({"script.py": TRAINS})
    case.write(tmp_path, "search")
    (tmp_path / "search.yaml").write_text(SEARCH)
    (tmp_path / "user.py").write_text("""
import json, pathlib, sys
from determined.experimental import client

experiment = client.create_experiment("search.yaml", "search")
first = experiment.await_first_trial()
assert experiment.wait(interval=0.1) == client.ExperimentState.COMPLETED
experiment = client.get_experiment(experiment.id)
best = experiment.top_checkpoint()
files = pathlib.Path(best.download("best"))
try:
    client.get_experiment(10**8)
except Exception as error:
    missing = f"{type(error).__name__}: {error}"
print(json.dumps({
    "first": first.id in [trial.id for trial in experiment.get_trials()],
    "trials": sorted(trial.hparams["a"] for trial in experiment.get_trials()),
    "best": best.training.hparams["a"],
    "order": [c.training.hparams["a"] for c in experiment.top_n_checkpoints(3)],
    "same": client.get_checkpoint(best.uuid).uuid == best.uuid,
    "weights": (files / "weights").read_text(),
    "logs": [line for line in client.get_trial(first.id).logs() if "training" in line],
    "missing": missing,
}))
""")
    done = subprocess.run(
        [sys.executable, "user.py"],
        env=cluster.env, cwd=tmp_path, text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (line,) = found.pop("logs")
    assert re.search(r"training with [123]\n$", line)
    assert found == {
        "first": True,
        "trials": [1, 2, 3],
        "best": 3,
        "order": [3, 2, 1],
        "same": True,
        "weights": "3",
        "missing": "NotFoundException: not found: experiment 100000000 does not exist",
    }


def test_everything_survives_down_and_up(cluster: LocalCluster, tmp_path: Path) -> None:
    """Ended work stays as it was, and interrupted work goes on."""
    case = Case({"script.py": TRAINS})
    _, model = case.write(tmp_path, "search")
    (tmp_path / "search.yaml").write_text(SEARCH)
    experiment = client(cluster).create_experiment(tmp_path / "search.yaml", model)
    experiment.wait(interval=0.1)
    number = str(experiment.id)
    (trial, *_) = experiment.get_trials()

    def everything() -> list[object]:
        return [
            cluster.json("experiment", "describe", number),
            cluster.json("experiment", "list-checkpoints", number),
            cluster.json("trial", "describe", str(trial.id), "--metrics"),
            cluster.det("trial", "logs", str(trial.id)).stdout,
            cluster.det("experiment", "config", number).stdout,
        ]

    # The collection of its checkpoints runs after its end.
    until("all checkpoints looked through", lambda: not cluster.collections())
    before = everything()
    open_one, folder = begin(cluster, tmp_path)
    run, _ = flow_process_of(cluster, open_one)
    prefect = Prefect(cluster)
    until("its flow", lambda: prefect.call(f"/flow_runs/{run}")["state_type"], equals="RUNNING")
    cluster.down()
    assert processes_of(cluster) == []
    done = cluster.det("experiment", "list", check=False)
    assert done.returncode == 1
    assert "det deploy local cluster-up" in done.stderr
    cluster.up()
    assert everything() == before
    uuid = cluster.json("experiment", "list-checkpoints", number)[0]["uuid"]
    cluster.det("checkpoint", "download", uuid, "-o", str(tmp_path / "kept"))
    assert (tmp_path / "kept" / "weights").is_file()
    (folder / "go").touch()
    assert cluster.wait(open_one) == "COMPLETED"
    assert legs_of(folder) == {"1", "2"}
    assert [trial["restarts"] for trial in cluster.trials(open_one)] == [0, 0]
    again = outcomes(cluster, tmp_path / "again", {"again": script(GOOD)})["again"]
    assert again.state == "COMPLETED"
    assert again.experiment_id > open_one


def processes_of(cluster: LocalCluster) -> list[str]:
    """The command lines of all processes that work in the cluster's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            environment, command = process.environ(), " ".join(process.cmdline())
        except psutil.Error:
            continue
        folder = str(cluster.data_dir)
        mine = environment.get("DET_DATA_DIR") == folder or folder in command
        if mine and process.pid != os.getpid():
            found.append(command)
    return found
