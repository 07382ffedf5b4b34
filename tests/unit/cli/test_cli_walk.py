"""The number of files along the configuration's way from `det flow run` to the request that submits it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import determined
from determined.expconf.document import Document
from determined.experimental._submission import ConfigText, Submission
from tests.unit.cli.conftest import Det

HARNESS = str(Path(determined.__file__).parent)
YAML = """\
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 1}}
"""


def _is_configuration(value: Any) -> bool:
    if isinstance(value, dict):
        return "searcher" in value and "entrypoint" in value
    if isinstance(value, str):
        return value == YAML
    return isinstance(value, Document | ConfigText | Submission)


class Walk:
    """The files whose functions are given the configuration, in the order of their calls."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(HARNESS):
            return
        if any(_is_configuration(value) for value in list(frame.f_locals.values())):
            name = file.removeprefix(f"{HARNESS}/")
            if self.files[-1:] != [name]:
                self.files.append(name)


def test_the_way_of_a_configuration_is_short(det: Det, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").touch()
    (tmp_path / "c.yaml").write_text(YAML)
    # Modules that are imported on the way would be seen, too.
    assert det("flow", "run", "-d", tmp_path / "c.yaml", tmp_path / "code").exit_code == 0
    walk = Walk()
    sys.setprofile(walk.see)
    try:
        result = det("flow", "run", "-d", tmp_path / "c.yaml", tmp_path / "code")
    finally:
        sys.setprofile(None)
    assert result.exit_code == 0, result.stderr
    # The service's answer holds the configuration again.
    way = walk.files[: walk.files.index("experimental/_experiment.py")]
    assert len(set(way)) <= 15, way
    assert len(way) - len(set(way)) <= 5, way
