"""A program: writes what imports may change in its process to ``OUT``, as JSON, before its own imports and
after them (``IMPORTS``, separated by spaces).
"""

import importlib
import json
import locale
import logging
import os
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

OWN = ("OUT", "PWD", "_")


def process() -> dict[str, Any]:
    """State of the process or of Python, independent of imports."""
    umask = os.umask(0)
    os.umask(umask)
    root = logging.getLogger()
    seen = subprocess.run(["/usr/bin/env", "-0"], capture_output=True, check=True).stdout.decode()
    return {
        "environment": {k: v for k, v in sorted(os.environ.items()) if k not in OWN},
        "environment of children": sorted(
            item for item in seen.split("\0") if item.partition("=")[0] not in OWN
        ),
        "locale": locale.setlocale(locale.LC_ALL),
        "umask": umask,
        "signal handlers": {
            str(int(one)): getattr(signal.getsignal(one), "__name__", str(signal.getsignal(one)))
            for one in signal.valid_signals()
        },
        "sys.path": sys.path,
        "root logger": [root.level, [str(one) for one in root.handlers], root.manager.disable],
        "logger class": logging.getLoggerClass().__name__,
        "hooks": [
            sys.excepthook is sys.__excepthook__,
            sys.displayhook is sys.__displayhook__,
            sys.unraisablehook is sys.__unraisablehook__,
            warnings.showwarning.__module__,
        ],
        "traces": [str(sys.gettrace()), str(sys.getprofile())],
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "socket timeout": socket.getdefaulttimeout(),
        "working directory": str(Path.cwd()),
    }


def packages() -> dict[str, Any]:
    """State of packages, once they are imported."""
    loggers = logging.root.manager.loggerDict.items()
    return {
        "filters of warnings": sorted(map(str, warnings.filters)),
        "loggers": {
            name: [one.level, one.propagate, [type(handler).__name__ for handler in one.handlers]]
            for name, one in sorted(loggers)
            if isinstance(one, logging.Logger) and (one.level or one.handlers or not one.propagate)
        },
    }


def draws() -> list[str]:
    """The next numbers of the global generators."""
    import random

    import numpy
    import torch

    return [str(random.random()), str(numpy.random.random()), str(torch.rand(1).item())]


if __name__ == "__main__":
    begin = process()
    for name in os.environ["IMPORTS"].split():
        importlib.import_module(name)
    found = {"begin": begin, "packages": packages(), "draws": draws()}
    Path(os.environ["OUT"]).write_text(json.dumps(found))
