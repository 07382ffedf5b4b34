"""The support bundle: one file with all that is known about a trial, to attach to a bug report.

A part that cannot be read is listed in ``manifest.json``; the other parts are written all the same.
Secrets of the configuration are masked wherever they stand, and so is what looks like one: a password in an
address, a token of a known shape. Only its owner may read the file.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from determined.__version__ import __version__
from determined.cli.state import State
from determined.common.api import errors

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.experimental import Determined, Experiment, Trial

_GROUPS = {"avg_metrics": "training", "validation_metrics": "validation"}


def write(shared: State, trial_id: int, directory: Path) -> tuple[Path, dict[str, str]]:
    """Writes ``det-trial-<id>-<time>.tar.gz`` into ``directory``, which is created if necessary.

    Returns the file's path, and the reason for each missing part. Raises NotFoundException for a trial
    that does not exist, and OSError if the file cannot be written.
    """
    trial = shared.client.get_trial(trial_id)
    now = datetime.datetime.now(datetime.UTC)
    name = f"det-trial-{trial_id}-{now:%Y%m%dT%H%M%SZ}"
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{name}.tar.gz"
    with tempfile.TemporaryDirectory(prefix=".det-bundle-", dir=directory) as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        secrets = _Secrets()
        missing = _gather(shared, trial, folder, secrets)
        manifest = {
            "trial": trial_id,
            "experiment": trial.experiment_id,
            "made": now.isoformat(),
            "det": __version__,
            "python": sys.version,
            "platform": platform.platform(),
            "missing": missing,
        }
        _write_json(folder / "manifest.json", manifest)
        secrets.clean(folder)
        packed = Path(temporary) / target.name
        private = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(private, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            archive.add(folder, arcname=name)
        # Moved in one step, so that the file is complete as soon as it exists.
        packed.replace(target)
    return target, missing


def _gather(shared: State, trial: Trial, folder: Path, secrets: _Secrets) -> dict[str, str]:
    client = shared.client
    parts: dict[str, Callable[[Path], None]] = {
        "trial.json": lambda file: _write_json(file, secrets.masked(trial.document)),
        "experiment.json": lambda file: _write_experiment(trial.get_experiment(), file, secrets),
        "explanation.json": lambda file: _write_json(file, trial.get_experiment().explain()),
        "allocations.json": lambda file: _write_json(file, secrets.masked(_task(client, trial))),
        "checkpoints.json": lambda file: _write_json(
            file, [secrets.masked(one.document) for one in trial.list_checkpoints()]
        ),
        "logs.txt": lambda file: _write_logs(trial, file),
        "cluster.json": lambda file: _write_json(file, _cluster(shared)),
    }
    for key in trial.summary_metrics or {}:
        group = _GROUPS.get(key, key)
        safe = re.sub(r"[^\w.-]", "_", group)
        parts[f"metrics-{safe}.jsonl"] = lambda file, group=group: _write_metrics(  # type: ignore[misc]
            shared.session, trial.id, group, file
        )
    missing: dict[str, str] = {}
    for name, make in parts.items():
        try:
            make(folder / name)
        except errors.APIException as error:
            missing[name] = error.message
    return missing


def _task(client: Determined, trial: Trial) -> dict[str, Any]:
    """The trial's task; its ``allocations`` are those of all tasks that the trial has had."""
    *former, newest = [
        client.get_task(task).document
        for task in trial.document.get("taskIds") or [trial.document["taskId"]]
    ]
    held = [allocation for one in (*former, newest) for allocation in one["allocations"]]
    return newest | {"allocations": held}


def _write_experiment(experiment: Experiment, file: Path, secrets: _Secrets) -> None:
    import yaml

    _write_json(file, secrets.masked(experiment.document))
    config = secrets.config(experiment.config or {})
    file.with_name("config.yaml").write_text(yaml.safe_dump(config, sort_keys=True))


def _write_logs(trial: Trial, file: Path) -> None:
    """Writes ``logs.txt`` as `det trial logs` prints it, and ``logs.jsonl`` with every field."""
    with file.open("w", errors="replace") as text, file.with_suffix(".jsonl").open("wb") as lines:
        for entry in trial.iter_log_entries():
            text.write(entry["message"])
            lines.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))


def _write_metrics(session: Session, trial_id: int, group: str, file: Path) -> None:
    from determined.experimental._metrics import iter_reports

    with file.open("wb") as lines:
        for report in iter_reports(session, [trial_id], group):
            lines.write(orjson.dumps(report, option=orjson.OPT_APPEND_NEWLINE))


def _cluster(shared: State) -> dict[str, Any]:
    """The doctor's findings and facts."""
    from determined.cli.doctor.examine import examine
    from determined.cli.doctor.judge import judge

    facts = examine(shared)
    return {"findings": judge(facts), "facts": facts}


class _Secrets:
    """The secrets of the configurations that were seen, and the masking of everything that is written."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def masked(self, document: dict[str, Any]) -> dict[str, Any]:
        """A copy in which every configuration is masked; the submitted text is left out."""
        return dict(self._items(document))

    def _items(self, document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in document.items():
            if key == "originalConfig":
                continue
            if key == "config" and isinstance(value, str):
                yield key, orjson.dumps(self.config(orjson.loads(value))).decode()
            elif key in ("config", "experimentConfig") and isinstance(value, dict):
                yield key, self.config(value)
            elif key == "storage" and isinstance(value, dict):
                yield key, self.config({"checkpoint_storage": value})["checkpoint_storage"]
            else:
                yield key, self._within(value)

    def _within(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self.masked(value)
        return [self._within(item) for item in value] if isinstance(value, list) else value

    def config(self, config: dict[str, Any]) -> dict[str, Any]:
        """A masked copy; its secrets are known from here on."""
        from determined.expconf import masked_to_share, secret_values

        self._values |= secret_values(config)
        return masked_to_share(config)

    def clean(self, folder: Path) -> None:
        """Masks the known secrets, and what looks like one, in every file."""
        from determined.expconf.problems import MASK
        from determined.expconf.secret_text import masked_text

        # As they are, and as JSON writes them; the longest first, so that none is cut in two.
        # Of a secret of several lines, each counts.
        self._values |= {
            line for value in self._values for line in value.split() if len(line) >= 16
        }
        forms = self._values | {orjson.dumps(value).decode()[1:-1] for value in self._values}
        known = re.compile(
            "|".join(map(re.escape, sorted(forms, key=len, reverse=True))) or r"(?!)"
        )
        for file in sorted(folder.iterdir()):
            cleaned = file.with_name(f"{file.name}.cleaned")
            with (
                file.open(newline="", errors="replace") as lines,
                cleaned.open("w", newline="", errors="replace") as target,
            ):
                for line in lines:
                    target.write(masked_text(known.sub(MASK, line)))
            cleaned.replace(file)


def _write_json(file: Path, document: Any) -> None:
    file.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
