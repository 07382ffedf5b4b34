"""Retrainings: models that are trained again, and promoted only when they are better."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from determined.common.api import pages, tasks
from determined.experimental._metrics import parse_time
from determined.experimental._model import model_path

if TYPE_CHECKING:
    from determined.common.api.session import Session
    from determined.experimental._submission import Submission

RETRAININGS = "/api/v1/retrainings"


class RetrainingRun:
    """One time that a model was trained again, or rolled back.

    Attributes:
        id, state, reason: its number, the name of its state, and why it is in it.
        end_time: None while it runs, or waits for an approval.
        document: the service's JSON, including fields that are not attributes.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.id: int = data["id"]
        self.state: str = data["state"]
        self.reason: str | None = data.get("reason")
        self.end_time: datetime.datetime | None = parse_time(data.get("endTime"))
        self.document = data


class Retraining:
    """The plan by which a model is trained again. Attributes are as of the last :meth:`reload`.

    Attributes:
        model: the model's name or id.
        warnings: what the service warned of when it was created from here.
        document: the service's JSON: ``plan``, ``paused``, ``nextTime``, ``lastRun`` and others.
    """

    def __init__(self, session: Session, model: str | int) -> None:
        self._session = session
        self.model = model
        self.warnings: list[str] = []
        self.document: dict[str, Any] = {}

    @classmethod
    def _from_json(cls, model: str | int, data: dict[str, Any], session: Session) -> Retraining:
        found = cls(session, model)
        found.document = data
        return found

    @property
    def _path(self) -> str:
        return f"{model_path(self.model)}/retraining"

    def reload(self) -> None:
        """Fetches all attributes again. Raises NotFoundException if the model is not trained again."""
        self.document = self._session.get(self._path)["retraining"]

    def run(self, *, force: bool = False) -> int:
        """Trains the model again now; the number of the run. ``force``: even if the data has not changed."""
        return int(self._session.post(f"{self._path}/runs", json={"force": force})["runId"])

    def iter_runs(self, limit: int | None = None) -> Iterator[RetrainingRun]:
        """The runs, the latest first, at most ``limit``."""
        found = pages.read(self._session, f"{self._path}/runs", "runs", limit=limit)
        return found.each(RetrainingRun)

    def pause(self) -> None:
        """Lets schedule and events rest; a run that is open goes on."""
        self._session.patch(self._path, json={"paused": True})

    def resume(self) -> None:
        """Lets schedule and events go on; what was missed while they rested is not caught up."""
        self._session.patch(self._path, json={"paused": False})

    def cancel(self) -> int:
        """Ends the open run and kills its experiment; the champion stays. Returns the run's number."""
        return int(self._session.post(f"{self._path}/cancel", json={})["runId"])

    def approve(self, approve: bool = True) -> int:
        """Answers the run that waits for an approval; False keeps the champion. Returns the run's number."""
        return int(self._session.post(f"{self._path}/approve", json={"approve": approve})["runId"])

    def roll_back(self, version: int | None = None) -> tuple[int, int]:
        """Lets the alias stand for the version before, or for ``version``, again.

        Returns the version that it stood for and the one that it stands for now.
        """
        moved = self._session.post(f"{self._path}/rollback", json={"version": version})
        return int(moved["fromVersion"]), int(moved["toVersion"])

    def delete(self) -> None:
        """Ends it. The model's versions and aliases stay; the history of the runs is deleted."""
        self._session.delete(self._path)

    def __repr__(self) -> str:
        return f"Retraining(model={self.model!r})"


class RetrainingVerbs:
    """The methods of :class:`Determined` for retrainings."""

    _session: Session

    def list_retrainings(self) -> list[Retraining]:
        """The retrainings of all models."""
        return [
            Retraining._from_json(data["model"], data, self._session)
            for data in pages.read(self._session, RETRAININGS, "retrainings")
        ]

    def get_retraining(self, model: str | int) -> Retraining:
        """The retraining of a model, by the model's name or id. Raises NotFoundException."""
        found = Retraining(self._session, model)
        found.reload()
        return found

    def create_retraining(
        self,
        model: str | int,
        plan: Mapping[str, Any],
        config: str | Path | dict[str, Any],
        model_dir: str | Path | None = None,
    ) -> Retraining:
        """Has a model trained again. A plan that is there already is replaced, its history stays.

        ``plan`` is that of docs/automate/retraining.md, without ``model`` and ``experiment``. ``config`` and
        ``model_dir`` are those of :meth:`create_experiment`, and raise the same.
        """
        from determined.experimental import _submission

        return self.send_retraining(model, plan, _submission.plan(config, model_dir))

    def send_retraining(
        self, model: str | int, plan: Mapping[str, Any], submission: Submission
    ) -> Retraining:
        """As :meth:`create_retraining`, of an experiment that is planned already."""
        body = {
            "config": submission.config.text,
            "modelDefinition": submission.body()["modelDefinition"],
            "plan": dict(plan),
        }
        path = f"{model_path(model)}/retraining"
        answer = self._session.put(path, json=body, timeout=tasks.TIMEOUT_S)
        made = Retraining._from_json(model, answer["retraining"], self._session)
        made.warnings = tasks.warnings_of(answer)
        return made
