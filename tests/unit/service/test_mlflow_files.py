"""Files that MLflow's server names to the service, which opens them a moment later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from determined_service.mlflow import files


def test_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"mine")
    with files.opened(str(tmp_path / "own")) as file:
        assert file.read() == b"mine"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "nothing"])
def test_what_took_the_place_of_a_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    """A link would give any file of the service's account, a pipe would be waited for."""
    (tmp_path / "secret").write_bytes(b"another's")
    path = tmp_path / "own"
    if kind == "link":
        path.symlink_to(tmp_path / "secret")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(FileNotFoundError), files.opened(str(path)):
        pass
