"""The support bundle: one file with all that is known about a trial, to attach to a bug report.

A part that cannot be read is listed in ``manifest.json``; the other parts are written all the same.
Secrets in configurations are masked. The output and the reports of training code are not masked.
"""

from __future__ import annotations

import contextlib
import datetime
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from determined.__version__ import __version__
from determined.cli.state import State
from determined.common.api import errors, pages
from determined.common.api.session import Session

_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_GROUPS = {"avg_metrics": "training", "validation_metrics": "validation"}


def write(shared: State, trial_id: int, directory: Path) -> tuple[Path, dict[str, str]]:
    """Writes ``det-trial-<id>-<time>.tar.gz`` into ``directory``, which is created if necessary.

    Returns the file's path, and the reason for each missing part. Raises NotFoundException for a trial
    that does not exist, and OSError if the file cannot be written.
    """
    session = shared.session
    trial = session.get(f"/api/v1/trials/{trial_id}")["trial"]
    now = datetime.datetime.now(datetime.UTC)
    name = f"det-trial-{trial_id}-{now:%Y%m%dT%H%M%SZ}"
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{name}.tar.gz"
    with tempfile.TemporaryDirectory(prefix=".det-bundle-", dir=directory) as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        missing = _gather(shared, trial, folder)
        manifest = {
            "trial": trial_id,
            "experiment": trial["experimentId"],
            "made": now.isoformat(),
            "det": __version__,
            "python": sys.version,
            "platform": platform.platform(),
            "missing": missing,
        }
        _write_json(folder / "manifest.json", manifest)
        packed = Path(temporary) / target.name
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(folder, arcname=name)
        # Moved in one step, so that the file is complete as soon as it exists.
        packed.replace(target)
    return target, missing


def _gather(shared: State, trial: dict[str, Any], folder: Path) -> dict[str, str]:
    session = shared.session
    path = f"/api/v1/trials/{trial['id']}"
    experiment_path = f"/api/v1/experiments/{trial['experimentId']}"
    parts: dict[str, Callable[[Path], None]] = {
        "trial.json": lambda file: _write_json(file, _masked(trial)),
        "experiment.json": lambda file: _write_experiment(session, experiment_path, file),
        "explanation.json": lambda file: _write_json(
            file, session.get(f"{experiment_path}/explanation")
        ),
        "allocations.json": lambda file: _write_json(
            file, session.get(f"/api/v1/tasks/{trial['taskId']}")["task"]
        ),
        "checkpoints.json": lambda file: _write_json(
            file,
            [_masked(one) for one in pages.read(session, f"{path}/checkpoints", "checkpoints")],
        ),
        "logs.txt": lambda file: _write_logs(session, trial["id"], file),
        "cluster.json": lambda file: _write_json(file, _cluster(shared)),
    }
    for key in trial.get("summaryMetrics") or {}:
        group = _GROUPS.get(key, key)
        safe = re.sub(r"[^\w.-]", "_", group)
        parts[f"metrics-{safe}.jsonl"] = lambda file, group=group: _write_metrics(  # type: ignore[misc]
            session, trial["id"], group, file
        )
    missing: dict[str, str] = {}
    for name, make in parts.items():
        try:
            make(folder / name)
        except errors.APIException as error:
            missing[name] = error.message
    return missing


def _write_experiment(session: Session, path: str, file: Path) -> None:
    import yaml

    answer = session.get(path)
    experiment = _masked(answer["experiment"])
    _write_json(file, experiment)
    config = _masked_config(answer.get("config") or answer["experiment"].get("config") or {})
    file.with_name("config.yaml").write_text(yaml.safe_dump(config, sort_keys=True))


def _write_logs(session: Session, trial_id: int, file: Path) -> None:
    """Writes ``logs.txt`` as `det trial logs` prints it, and ``logs.jsonl`` with every field."""
    from determined.experimental import _logs

    with file.open("w", errors="replace") as text, file.with_suffix(".jsonl").open("wb") as lines:
        for entry in _logs.iter_entries(session, trial_id):
            text.write(entry["message"])
            lines.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))


def _write_metrics(session: Session, trial_id: int, group: str, file: Path) -> None:
    params = {"trialIds": [trial_id], "group": group}
    with file.open("wb") as lines:
        for answer in session.stream("/api/v1/trials/metrics/trial_metrics", params=params):
            for report in answer["metrics"]:
                lines.write(orjson.dumps(report, option=orjson.OPT_APPEND_NEWLINE))


def _cluster(shared: State) -> dict[str, Any]:
    """The doctor's findings and facts."""
    from determined.cli.doctor.examine import examine
    from determined.cli.doctor.judge import judge

    facts = examine(shared)
    return {"findings": judge(facts), "facts": facts}


def _masked(document: dict[str, Any]) -> dict[str, Any]:
    """A copy in which every configuration is masked; the submitted text is left out."""
    return dict(_items(document))


def _items(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if key == "originalConfig":
            continue
        if key in ("config", "experimentConfig") and isinstance(value, dict):
            yield key, _masked_config(value)
        else:
            yield key, _masked(value) if isinstance(value, dict) else value


def _masked_config(config: dict[str, Any]) -> dict[str, Any]:
    from determined.expconf import masked

    found = masked(config)
    with contextlib.suppress(KeyError, TypeError):
        environment = found["environment"]
        environment["environment_variables"] = _masked_variables(
            environment["environment_variables"]
        )
    return found


def _masked_variables(given: Any) -> Any:
    """Environment variables, where the values of those with names such as ``…TOKEN…`` are masked.

    ``given`` is a list of ``NAME=value``, or such lists by slot type.
    """
    if isinstance(given, dict):
        return {
            key: "********"
            if isinstance(value, str) and _SECRET_NAME.search(key)
            else _masked_variables(value)
            for key, value in given.items()
        }
    if isinstance(given, list):
        return [_masked_variables(item) for item in given]
    if isinstance(given, str):
        name, sign, _ = given.partition("=")
        return f"{name}=********" if sign and _SECRET_NAME.search(name) else given
    return given


def _write_json(file: Path, document: Any) -> None:
    file.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
