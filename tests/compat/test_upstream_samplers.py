"""The shuffling samplers give the orders of Determined's own package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.compat.upstream_client import VERSION, installed_python

pytestmark = pytest.mark.timeout(900)

ORDERS = """
import json, sys, warnings
warnings.simplefilter("ignore")
import determined as det
from determined.pytorch import samplers

orders = []
for seed, size in ((0, 1), (1, 10), (77, 1000), (2**31 - 1, 33), (2**32 - 1, 7)):
    indices = samplers.ReproducibleShuffleSampler(range(size), seed)
    even = [[index, index + 1] for index in range(0, size, 2)]
    uneven = [list(range(start, min(start + 3, size))) for start in range(0, size, 3)]
    shuffles = [indices]
    shuffles += [samplers.ReproducibleShuffleBatchSampler(some, seed) for some in (even, uneven)]
    orders += [[list(shuffle) for _ in range(5)] for shuffle in shuffles]
print(json.dumps([det.__file__, det.__version__, orders]))
"""


def answer(*, path: str | None) -> list[Any]:
    """The output of ORDERS in this interpreter, which has torch; ``path`` comes before its own packages."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if path is not None:
        env["PYTHONPATH"] = path
    command = [sys.executable, "-c", ORDERS]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_a_seed_gives_the_order_it_gave_there() -> None:
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs = subprocess.run(
        [str(installed_python()), "-c", where], capture_output=True, text=True, check=True
    ).stdout.strip()
    file, version, wanted = answer(path=theirs)
    assert (version, file.startswith(theirs)) == (VERSION, True)
    ours, _, orders = answer(path=None)
    assert not ours.startswith(theirs)
    assert orders == wanted
    assert len({json.dumps(order) for order in orders[3]}) == 5  # each pass has another order
