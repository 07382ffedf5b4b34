"""Small helpers that published scripts import: ``from determined.common import util``."""

from __future__ import annotations

import datetime
import functools
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

from determined._absent import absent
from determined.common import master
from determined.common.api.token_store import config_dir

T = TypeVar("T")
P = ParamSpec("P")

# Groups of metrics whose names are older than groups are.
_LEGACY_TRAINING = "training"
_LEGACY_VALIDATION = "validation"

_FALSE = frozenset({"0", "off", "f", "false", "n", "no", ""})
_RETRIES = 20

__getattr__ = absent(
    __name__,
    {
        "write_checkpoint_metadata": "Checkpoint.write_metadata_file(path) writes it",
        "get_det_username_from_env": "read os.environ['DET_USER']",
    },
)


def get_default_master_address() -> str:
    """The service's address, as `det` finds it: $DET_MASTER, the local cluster, http://localhost:8080."""
    return master.find().url


def get_config_path() -> Path:
    """The directory where logins are kept."""
    return config_dir()


def debug_mode() -> bool:
    """Whether $DET_DEBUG is set to something true."""
    return strtobool(os.environ.get("DET_DEBUG", ""))


def get_max_retries_config() -> int:
    """A patient ``max_retries`` for :class:`determined.common.api.Session`."""
    return _RETRIES


def safe_load_yaml_with_exceptions(yaml_file: str | IO[Any]) -> Any:
    """The data of a YAML text or file. Broken YAML is said on stderr and ends the program with code 1."""
    from determined.common import yaml

    return yaml.safe_load_or_exit(yaml_file)


def yaml_safe_load(f: str | IO[Any]) -> Any:
    """The data of a YAML text or file; see :func:`determined.common.yaml.safe_load` for the errors."""
    from determined.common import yaml

    return yaml.safe_load(f)


def yaml_safe_dump(
    data: Any, stream: IO[Any] | None = None, default_flow_style: bool | None = None
) -> Any:
    """YAML of ``data`` with sorted keys: written to ``stream``, or returned.

    ``default_flow_style``: ``[1, 2]`` for all lists (True), none (False), or the innermost ones (None).
    """
    from determined.common import yaml

    return yaml.safe_dump(data, stream, default_flow_style=default_flow_style)


def chunks(lst: Any, chunk_size: int) -> Iterator[Any]:
    """Slices of ``chunk_size`` items of a text or a sequence; the last one may be shorter."""
    for start in range(0, len(lst), chunk_size):
        yield lst[start : start + chunk_size]


def sizeof_fmt(val: float) -> str:
    """Bytes in words: ``1.5KB``."""
    size = float(val)
    for unit in ("", "K", "M", "G", "T", "P"):
        if abs(size) < 1024:
            return f"{size:3.1f}{unit}B"
        size /= 1024
    return f"{size:.1f}EB"


def strtobool(val: str) -> bool:
    """Whether a text means true: any but ``0``, ``off``, ``f``, ``false``, ``n``, ``no`` and nothing."""
    return val.strip().lower() not in _FALSE


def parse_protobuf_timestamp(ts: str) -> datetime.datetime:
    """The time in an answer of the service. Raises ValueError."""
    return datetime.datetime.fromisoformat(ts)


def is_protobuf_timestamp(ts: str) -> bool:
    """Whether the text is a time (with a zone) as the service writes it."""
    try:
        return "T" in ts and parse_protobuf_timestamp(ts).tzinfo is not None
    except ValueError:
        return False


def preserve_random_state(fn: Callable[P, T]) -> Callable[P, T]:
    """``fn`` that leaves the state of Python's ``random`` as it was."""

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        state = random.getstate()
        try:
            return fn(*args, **kwargs)
        finally:
            random.setstate(state)

    return wrapped


def deprecated(message: str | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: each call of the function gives a FutureWarning."""

    def decorate(fn: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(fn)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            words = message or f"{fn.__name__} is deprecated"
            warnings.warn(words, FutureWarning, stacklevel=2)
            return fn(*args, **kwargs)

        return wrapped

    return decorate


def wait_for(
    predicate: Callable[[], tuple[bool, T]], timeout: float = 60, interval: float = 0.1
) -> T:
    """Calls ``predicate`` every ``interval`` seconds until its first value is true; its second value.

    Raises TimeoutError after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        done, value = predicate()
        if done:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(f"the condition did not come true within {timeout} s")
        time.sleep(interval)
