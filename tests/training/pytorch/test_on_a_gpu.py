"""Tests that need a machine with a GPU. No other test sees one (tests/conftest.py)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.waiting import TIMEOUT_S

ON_THE_GPU = """
import json
import torch
from determined.pytorch import _device
from determined_deployments.local import slots

device = _device.of_process(0, torch.cuda.device_count())
total = (2 * torch.ones(3, device=device)).sum()
kind, found = slots.detect()
print(json.dumps([str(device), str(total.device), total.item(), kind, len(found) > 0]))
"""
SEEN = "import torch; print(torch.cuda.device_count())"


def run(code: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu
def test_a_process_computes_on_its_gpu(gpu_env: dict[str, str]) -> None:
    found = json.loads(run(ON_THE_GPU, gpu_env))
    assert found == ["cuda:0", "cuda:0", 6.0, "cuda", True]


def test_other_tests_see_none() -> None:
    assert run(SEEN) == "0\n"
