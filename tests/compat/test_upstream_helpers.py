"""Semi-public helpers return the same values as those of Determined's package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.upstream_client import installed_python

pytestmark = pytest.mark.timeout(900)

CALLS = """
import datetime, json, warnings
warnings.simplefilter("ignore")
from determined import util as det_util
from determined.common import api, check, constants, util

class Parent:
    def method(self): pass
class Other(Parent):
    def method(self): pass
class Same(Parent): pass
def function(x, y=1, *, z=2): pass

answers = [
    det_util.merge_dicts({"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"b": 2, "e": 3}}),
    det_util.merge_dicts({"a": {"b": 1}}, {"a": 5}),
    [det_util.has_param(function, *one) for one in (("x",), ("z",), ("w",), ("w", 1), ("w", 2))],
    sorted(det_util.filter_duplicates([1, 2, 2, 3, 3, 3])),
    [det_util.is_overridden(one, Parent) for one in (Other().method, Same().method, Other.method)],
    [det_util.get_member_func(Parent(), one) is None for one in ("method", "other")],
    [det_util.is_numerical_scalar(one) for one in (1, 1.5, True, "1", None)],
    [det_util.humanize_float(one) for one in (1234.5678, 0.00012345, 5, 1e9)],
    det_util.json_encode({"b": float("nan"), "a": [1]}, sort_keys=True, indent=" "),
    [util.sizeof_fmt(one) for one in (0, 999, 1024, 1536, 10**9, 1e15)],
    [list(util.chunks(one, 2)) for one in ([1, 2, 3], "abcde")],
    [bool(util.strtobool(one)) for one in "y Yes on 1 n no f off 0 maybe".split()],
    [util.is_protobuf_timestamp(one) for one in ("2020-01-02T03:04:05Z", "2020-01-02", "x")],
    util.parse_protobuf_timestamp("2020-01-02T03:04:05Z").isoformat(),
    util.safe_load_yaml_with_exceptions("a: 1e-3\\nb: true\\nc: [x, 1]"),
    util.yaml_safe_dump({"b": 1, "a": [1, 2]}, default_flow_style=False),
    [api.canonicalize_master_url(one) for one in ("h", "h:1", "http://h", "https://h:1/x/")],
    api.authentication.salt_and_hash("secret"),
    [constants.DEFAULT_DETERMINED_USER, constants.SHARED_FS_CONTAINER_PATH],
    [util._LEGACY_TRAINING, util._LEGACY_VALIDATION, util.debug_mode()],
]
print(json.dumps(answers))
"""


def answers(python: Path) -> Any:
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DET_", "PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(python), "-c", CALLS], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_they_give_the_same() -> None:
    assert answers(Path(sys.executable)) == answers(installed_python())
