"""Names and values on both sides: pure functions, which import nothing of MLflow."""

from __future__ import annotations

import datetime
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

SEARCH = "search-"
"""A search is the run ``search-<experiment>``, the parent of its trials' runs."""
MODEL = "m-"
"""A checkpoint is the logged model ``m-<its uuid's 32 hexadecimal digits>``."""
LABEL = "label."
SAID = "mlflow"
"""The key in a checkpoint's metadata for the data that MLflow's clients send about a logged model."""
SAID_STEP = "step"
"""There: at which step the run has logged the model, if its client has said it."""
SAID_ALONE = "alone"
"""There: whether the run was made for the model, and ends with it."""
OWN_GROUP = "mlflow"
"""The group of metrics that a managed trial reports by MLflow's functions; they keep their names."""

SYSTEM = "system/"
"""The prefix of metrics that MLflow's pages show apart from those of training."""
SYSTEM_GROUPS = ("cpu", "memory", "disk", "network", "gpu")
"""The groups of the profiler, whose reports are objects: by agent, by disk or GPU, then numbers."""

_NUMBERED = re.compile(r" #(\d{1,9})$", re.ASCII)
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def number(text: Any) -> int | None:
    """The id of an experiment or trial; None: the text cannot be one."""
    text = str(text)
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None


def search_of(run_id: str) -> int | None:
    """The experiment whose search the run is; None: it is none."""
    return number(run_id.removeprefix(SEARCH)) if run_id.startswith(SEARCH) else None


def checkpoint_of(model_id: str) -> uuid.UUID | None:
    """The checkpoint that the logged model is; None: the text cannot be one's id."""
    if not re.fullmatch(r"m-[0-9a-f]{32}", model_id):
        return None
    return uuid.UUID(model_id.removeprefix(MODEL))


def model_id_of(checkpoint: uuid.UUID) -> str:
    return f"{MODEL}{checkpoint.hex}"


def experiment_name(name: str, experiment_id: int) -> str:
    """MLflow's names are unique, ours are not."""
    return f"{name} #{experiment_id}"


def numbered(name: str) -> tuple[str, int] | None:
    """The name and id in what :func:`experiment_name` may have made; None: it has not."""
    found = _NUMBERED.search(name)
    return None if found is None else (name[: found.start()], int(found[1]))


def millis(moment: datetime.datetime | None) -> int | None:
    """Milliseconds since 1970."""
    return None if moment is None else round(moment.timestamp() * 1000)


def param_text(value: Any) -> str:
    """A hyperparameter's value as a text: what ``str`` makes of it, so that it is what a script that had
    logged it with MLflow would have sent. Lists and objects as JSON."""
    if isinstance(value, list | dict):
        return orjson.dumps(value).decode()
    return str(value)


def param_value(text: str) -> Any:
    """The value whose :func:`param_text` is ``text``. Returns the text itself if it is neither a number nor a
    truth value, or if the value would be written differently (``1e-4``)."""
    known = {"True": True, "False": False}
    if text in known:
        return known[text]
    for read in (int, float):
        try:
            value = read(text)
        except (ValueError, OverflowError):
            continue
        # A zero loses its sign in Postgres.
        if math.isfinite(value) and abs(value) < 2**53 and str(value) == text != "-0.0":
            return value
    return text


def flat(hparams: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Hyperparameters as texts; the names of nested ones are joined by dots."""
    for name, value in hparams.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", param_text(value)


def metric_value(value: Any) -> float | None:
    """A reported value as a number; None: it is none."""
    if isinstance(value, bool) or value is None:
        return None if value is None else float(value)
    if isinstance(value, int | float):
        return float(value)
    return _NON_FINITE.get(value) if isinstance(value, str) else None


def shown_key(group: str, metric: str, native: bool) -> str:
    """The metric's name in MLflow: its group stands before it, unless MLflow's functions reported it."""
    return metric if native or group == OWN_GROUP else f"{group}/{metric}"


def numbers_in(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The numbers of a reported object, each with the path to it; ``path`` is the object's own."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers_in(inner, (*path, name))
    elif (found := metric_value(value)) is not None:
        yield path, found


def system_key(group: str, path: tuple[str, ...]) -> str:
    """The name in MLflow of a number that the profiler reports: ``system/cpu/agent-1/cpu_util_simple``."""
    return f"{SYSTEM}{group}/{'/'.join(path)}"


def places(key: str, native: bool) -> list[tuple[str, str]]:
    """Every group and name of which :func:`shown_key` could have made ``key``; the group "" is any.

    Of a managed trial a bare name is looked for in training and validation too, when nothing is called so.
    """
    if native:
        return [("", key)]
    group, slash, name = key.partition("/")
    if slash:
        return [(OWN_GROUP, key), (group, name)]
    return [(OWN_GROUP, key), ("validation", key), ("training", key)]


def json_number(value: float) -> float | str:
    """The number for JSON, which holds neither NaN nor infinities: they become texts."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
