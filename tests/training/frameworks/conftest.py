from __future__ import annotations

from pathlib import Path

import pytest
import torch
from one_trial import OneTrial


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, and a separate working directory."""
    torch.set_num_threads(1)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path / "run"))


@pytest.fixture
def trial(tmp_path: Path) -> OneTrial:
    return OneTrial(tmp_path / "storage")
