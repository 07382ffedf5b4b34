"""Frameworks in two processes, with the real launcher: one model, one set of reports, exact resume.

Each script of ``gangs/`` runs once, all of its trainings in the same two processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import TIMEOUT_S

ROOT = Path(__file__).parents[2]
Results = dict[str, Any]


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """The findings of a script of ``gangs/``; it is run at the first call."""
    found: dict[str, Results] = {}

    def run(name: str) -> Results:
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            (folder / "work").mkdir()
            path = [
                str(ROOT),
                str(ROOT / "tests/training/frameworks"),
                os.environ.get("PYTHONPATH"),
            ]
            env = {key: value for key, value in os.environ.items() if not key.startswith("DET_")}
            script = ROOT / "tests/integration/gangs" / f"{name}.py"
            launch = ["-m", "determined.launch.torch_distributed", "--nproc_per_node=2", "--"]
            done = subprocess.run(
                [sys.executable, *launch, str(script), str(folder)],
                env={**env, "PYTHONPATH": ":".join(filter(None, path)), "OMP_NUM_THREADS": "2"},
                cwd=folder / "work",
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
            assert done.returncode == 0, done.stderr
            found[name] = json.loads((folder / "results.json").read_text())
        return found[name]

    return run


def check_legs(found: Results, ended: str, expected: list[list[Any]]) -> None:
    """Each leg ended at the same place in both processes, with the same weights."""
    assert [leg[ended] for leg in found["legs"]] == [[where, where] for where in expected]
    for leg in found["legs"]:
        first, second = leg["weights"]
        assert first == second


def check_preempted(found: Results) -> None:
    """Acknowledged once by each leg but the last."""
    assert found["acknowledged"] == len(found["legs"]) - 1


def check_resumed(found: Results, unbroken: Results) -> None:
    """Equal, bit for bit, to a run without a stop."""
    assert found["training"] == unbroken["training"]
    assert found["validation"] == unbroken["validation"]
    assert found["legs"][-1]["weights"] == unbroken["legs"][-1]["weights"]
    check_preempted(found)


def test_lightning(gang: Callable[[str], Results]) -> None:
    pytest.importorskip("lightning.pytorch", reason="needs lightning")
    found = gang("lightning_gang")
    unbroken, at_end, within = (found[name] for name in ("unbroken", "at_end", "within"))
    check_legs(unbroken, "steps", [6])
    assert list(map(int, unbroken["training"])) == [1, 2, 3, 4, 5, 6]
    assert list(map(int, unbroken["validation"])) == unbroken["checkpoints"] == [2, 4, 6]
    check_legs(at_end, "steps", [2, 6])
    check_resumed(at_end, unbroken)
    # Stopped within an epoch: the remaining batches.
    check_legs(within, "steps", [3, 6])
    check_preempted(within)
    assert within["training"].keys() == unbroken["training"].keys()
    assert within["checkpoints"] == [2, 3, 4, 6]


def test_lengths_under_lightning(gang: Callable[[str], Results]) -> None:
    pytest.importorskip("lightning.pytorch", reason="needs lightning")
    found = gang("lightning_gang")["lengths"]
    check_legs(found, "steps", [6])
    metrics = [found["validation"][step]["error"] for step in ("2", "6")]
    assert found["completed"] == [[1, metrics[0]], [3, metrics[1]]]


def test_the_adapter(gang: Callable[[str], Results]) -> None:
    pytest.importorskip("lightning.pytorch", reason="needs lightning")
    first, second = gang("lightning_gang")["adapter"]
    for schedule, alone in first["alone"].items():
        mine, theirs = first["gang"][schedule], second["gang"][schedule]
        assert mine == theirs
        # One process adds up what two average: the last bits may differ.
        assert mine["weights"] == pytest.approx(alone["weights"], rel=1e-5)
        assert mine["calls"] == alone["calls"]
    for steps, left in {8: ["2.0", "2.1"], 6: ["1.2", "1.3"]}.items():
        for rank in (first, second):
            resumed = rank[f"resumed after {steps}"]
            assert resumed["weights"] == first["gang"]["step"]["weights"]
            assert resumed["calls"][:3] == ["mine 5", *left]


def test_the_adapters_schedulers_step_alike(gang: Callable[[str], Results]) -> None:
    pytest.importorskip("lightning.pytorch", reason="needs lightning")
    first, second = gang("lightning_gang")["adapter"]
    assert first["learning rate"] == second["learning rate"] == pytest.approx(0.001)


def test_transformers(gang: Callable[[str], Results]) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    pytest.importorskip("transformers", reason="needs transformers")
    found = gang("transformers_gang")
    unbroken = found["unbroken"]
    check_legs(unbroken, "steps", [8])
    assert list(map(int, unbroken["training"])) == list(range(1, 9))
    for name, ends in {"at_end": [4, 8], "within": [2, 6, 8]}.items():
        check_legs(found[name], "steps", ends)
        check_resumed(found[name], unbroken)
        assert found[name]["checkpoints"] == ends


def test_keras(gang: Callable[[str], Results]) -> None:
    keras = pytest.importorskip("keras", reason="needs keras")
    if keras.backend.backend() != "torch":
        pytest.skip("needs KERAS_BACKEND=torch")
    found = gang("keras_gang")
    check_legs(found["unbroken"], "epochs", [[0, 1, 2]])
    check_legs(found["preempted"], "epochs", [[0, 1], [2]])
    check_resumed(found["preempted"], found["unbroken"])
    assert found["preempted"]["checkpoints"] == [4, 8, 12]
    # Two processes, two messages.
    words = "the processes train different models"
    assert [message[: len(words)] for message in found["refused"]] == [words, words]
