from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trials import World


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, and a working directory with little code in it."""
    torch.set_num_threads(1)
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "checkpoints")
