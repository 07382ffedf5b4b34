"""``python -m determined.exec.one_batch MODULE:CLASS``: one batch of the class in the working directory.

The configuration is the standard input. For ``det e create --local --test``.
"""

from __future__ import annotations

import json
import logging
import sys

import determined as det
from determined.experimental import test_one_batch
from determined.launch._fail import fail


def main() -> None:
    """Ends the process with a reason where the class is none that can be tried."""
    (spec,) = sys.argv[1:]
    config = json.load(sys.stdin)
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    from determined.pytorch import PyTorchTrial
    from determined.pytorch._run import load_class

    found = load_class(spec)
    if not issubclass(found, PyTorchTrial):
        fail(
            f"{spec} is a trial class of DeepSpeed, which needs its launcher: --test alone tries it on the "
            "cluster"
        )
    test_one_batch(found, config)


if __name__ == "__main__":
    main()
