"""Ending a script from an exit handler."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import NoReturn

from determined import errors


def end_script(error: BaseException | None = None) -> NoReturn:
    """End the process with 1. The interpreter ignores exceptions of exit handlers and would end with 0.

    ``error`` is printed; None when it is in the log already.
    """
    if error is not None:
        prefix = "" if isinstance(error, errors.AllocationEnded) else "determined: "
        print(f"{prefix}{error}", file=sys.stderr)
    with contextlib.suppress(Exception):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)
