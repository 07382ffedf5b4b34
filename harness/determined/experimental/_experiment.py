"""An experiment: a hyperparameter search, or a single training run."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from determined.common.api import errors, pages, places
from determined.common.api.pages import Listing
from determined.common.api.patience import patiently
from determined.common.api.session import Session
from determined.common.api.tasks import warnings_of
from determined.experimental import _checkpoint, _tensorboard
from determined.experimental._checkpoint import Checkpoint
from determined.experimental._deletion import DELETION_TIMEOUT_S, pauses
from determined.experimental._enums import (
    CheckpointSortBy,
    CheckpointState,
    ExperimentState,
    OrderBy,
    TrialSortBy,
    TrialState,
)
from determined.experimental._metrics import VALIDATION, iter_metrics
from determined.experimental._page_file import write_page
from determined.experimental._trial import Trial

if TYPE_CHECKING:
    import pandas as pd

EXPERIMENTS = "/api/v1/experiments"


class Experiment:
    """An experiment at the service. Attributes are as of the last :meth:`reload`.

    Attributes:
        id: its number.
        config: the complete configuration, with defaults filled in.
        state: an :class:`ExperimentState`.
        progress: 0 to 1; None if it is not known.
        name, description, notes, labels, archived, project_id, workspace_id: as shown in lists.
        document: the service's JSON, including fields that are not attributes.
    """

    def __init__(self, experiment_id: int, session: Session) -> None:
        self._id = experiment_id
        self._session = session
        self.config: dict[str, Any] | None = None
        self.state: ExperimentState | None = None
        self.progress: float | None = None
        self.name: str | None = None
        self.description: str | None = None
        self.notes: str | None = None
        self.labels: set[str] | None = None
        self.archived: bool | None = None
        self.project_id: int | None = None
        self.workspace_id: int | None = None
        self.document: dict[str, Any] = {}

    @property
    def id(self) -> int:
        """The experiment's number."""
        return self._id

    @classmethod
    def _from_json(
        cls, data: dict[str, Any], session: Session, config: dict[str, Any] | None = None
    ) -> Experiment:
        experiment = cls(data["id"], session)
        experiment._fill(data, config)
        return experiment

    def _fill(self, data: dict[str, Any], config: dict[str, Any] | None) -> None:
        self.document = data
        self.config = config or data.get("config") or self.config
        self.state = ExperimentState(data["state"])
        self.progress = data.get("progress")
        self.name = data["name"]
        self.description = data.get("description") or ""
        self.notes = data.get("notes") or ""
        self.labels = set(data.get("labels") or ())
        self.archived = data["archived"]
        self.project_id = data.get("projectId")
        self.workspace_id = data.get("workspaceId")

    @property
    def _path(self) -> str:
        return f"{EXPERIMENTS}/{self._id}"

    def reload(self) -> None:
        """Fetches all attributes again. Raises NotFoundException."""
        self._read()

    def _read(self, **params: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._session.get(self._path, params=params)
        self._fill(answer["experiment"], answer.get("config"))
        return answer

    def remarks(self) -> list[str]:
        """Fetches all attributes again; returns what the service remarks on the configuration."""
        return list(self._read(remarks=True).get("remarks") or ())

    def explain(self, limit: int | None = None) -> dict[str, Any]:
        """Why the experiment is where it is, as the service's JSON.

        ``legs`` are the runs of its trials, ``waiting`` the requests that wait for slots, with the reason of
        each. ``limit`` limits ``waiting``; ``waitingTotal`` is the number of all.
        """
        params = {} if limit is None else {"limit": limit}
        found: dict[str, Any] = self._session.get(f"{self._path}/explanation", params=params)
        return found

    def get_config(self) -> dict[str, Any]:
        """The complete configuration."""
        if self.config is None:
            self.reload()
        assert self.config is not None
        return self.config

    # Actions.

    def activate(self) -> None:
        """Lets a paused experiment continue."""
        self._post("activate")

    def pause(self) -> None:
        """Pauses the experiment: its trials save a checkpoint and free their slots."""
        self._post("pause")

    def cancel(self) -> None:
        """Ends the experiment; its trials save a checkpoint first."""
        self._post("cancel")

    def kill(self) -> None:
        """Ends the experiment and its trials at once. An experiment that has ended does not change."""
        self._post("kill")

    def move(self, project_id: int) -> None:
        """Moves the experiment to the project of that id. Raises BadRequestException if there is none."""
        self._session.post(f"{self._path}/move", json={"destinationProjectId": project_id})
        self.project_id = project_id

    def move_to_project(self, workspace_name: str, project_name: str) -> None:
        """Moves the experiment to a project, by names. Raises NotFoundException with the nearest name."""
        within = places.find_workspace(self._session, workspace_name)
        self.move(places.find_project(self._session, within, project_name)["id"])
        self.workspace_id = within["id"]

    def archive(self) -> None:
        """Hides an experiment that has ended from lists."""
        self._post("archive")

    def unarchive(self) -> None:
        """Shows an archived experiment in lists again."""
        self._post("unarchive")

    def delete(self) -> None:
        """Starts to delete the experiment permanently; it must have ended.

        Metrics, logs, checkpoints and Prefect runs are deleted with it. Its state is DELETING until
        :meth:`reload` raises NotFoundException, or DELETE_FAILED.
        """
        self._session.request("DELETE", self._path)

    def wait_until_deleted(self, timeout_s: float = DELETION_TIMEOUT_S) -> bool:
        """Waits for the end of :meth:`delete`; False if it takes longer than ``timeout_s``.

        Raises ConflictException, with the reason, if the experiment could not be deleted.
        """
        for _ in pauses(timeout_s):
            try:
                self.reload()
            except errors.NotFoundException:
                return True
            if self.state is ExperimentState.DELETE_FAILED:
                why = self.document.get("reason")
                raise errors.ConflictException(
                    f"experiment {self._id} could not be deleted: {why}", 409
                )
        return False

    def continue_(self, config: dict[str, Any] | None = None) -> list[str]:
        """Lets an experiment that has ended go on: canceled and failed trials, from their checkpoints.

        ``config`` is merged into the configuration, which only the searcher `single` allows: a larger
        ``searcher.max_length`` trains the trial longer. Returns the service's warnings. Raises
        BadRequestException.
        """
        body = {"id": self._id, "overrideConfig": json.dumps(config) if config else ""}
        return warnings_of(self._session.post(f"{EXPERIMENTS}/continue", json=body))

    def preview_gc_policy(
        self, *, save_experiment_best: int, save_trial_best: int, save_trial_latest: int
    ) -> list[dict[str, Any]]:
        """The checkpoints that :meth:`set_gc_policy` would delete now, as the service's JSON."""
        policy = {
            "save_experiment_best": save_experiment_best,
            "save_trial_best": save_trial_best,
            "save_trial_latest": save_trial_latest,
        }
        answer = self._session.get(f"/experiments/{self._id}/preview_gc", params=policy)
        return list(answer["checkpoints"])

    def set_gc_policy(
        self, *, save_experiment_best: int, save_trial_best: int, save_trial_latest: int
    ) -> None:
        """Sets how many checkpoints are kept; the others are deleted at the experiment's end.

        If the experiment has ended already, they are deleted now.
        """
        self._patch(
            checkpointStorage={
                "saveExperimentBest": save_experiment_best,
                "saveTrialBest": save_trial_best,
                "saveTrialLatest": save_trial_latest,
            }
        )

    def set_priority(self, priority: int) -> list[str]:
        """Sets the priority, 1 to 99; a lower number is more important, on Kubernetes a higher one.

        Returns the service's remarks.
        """
        return self._set_resource(priority=priority)

    def set_weight(self, weight: float) -> list[str]:
        """Sets the weight of the experiment's fair share. Returns the service's remarks."""
        return self._set_resource(weight=weight)

    def set_max_slots(self, max_slots: int | None) -> list[str]:
        """Sets how many slots all trials together may use; None: no limit. Returns the service's remarks.

        Trials above the limit save a checkpoint, and go on later.
        """
        return self._set_resource(maxSlots=max_slots)

    def _set_resource(self, **value: float | None) -> list[str]:
        return list(self._patch(resources=value).get("remarks") or ())

    def _post(self, action: str) -> None:
        self._session.post(f"{self._path}/{action}", json={})

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Waits for the experiment's end; returns its state.

        Polls every ``interval`` seconds, and more often at first. If the service does not answer, waits
        up to 2 minutes, then raises MasterNotFoundException.
        """
        pause = min(0.2, interval)
        while True:
            patiently(self.reload)
            assert self.state is not None
            if self.state.terminal:
                return self.state
            time.sleep(pause)
            pause = min(pause * 1.5, interval)

    # Trials, checkpoints, logs and files.

    def await_first_trial(self, interval: float = 0.1) -> Trial:
        """Waits for the experiment's first trial, the one with the smallest id.

        Raises RuntimeError if the experiment ended without a trial.
        """
        while True:
            # The state is read first, so that a trial created just before the end is not missed.
            self.reload()
            for trial in self.iter_trials(limit=1):
                return trial
            assert self.state is not None
            if self.state.terminal:
                raise RuntimeError(f"experiment {self._id} ended {self.state} without a trial")
            time.sleep(interval)

    def iter_trials(
        self,
        sort_by: TrialSortBy = TrialSortBy.ID,
        order_by: OrderBy = OrderBy.ASCENDING,
        limit: int | None = None,
        *,
        offset: int = 0,
        max_results: int | None = None,
        states: Sequence[TrialState] | None = None,
    ) -> Listing[Trial]:
        """The trials of the experiment, fetched in pages of ``limit``, as upstream does.

        Begins with number ``offset``, from the end if it is negative, and ends after ``max_results``.
        """
        params = {
            "sortBy": sort_by.value,
            "orderBy": order_by.value,
            "states": [state.value for state in states] if states else None,
        }
        found = pages.read(
            self._session,
            f"{self._path}/trials",
            "trials",
            params,
            offset=offset,
            limit=max_results,
            page_size=limit or pages.PAGE_SIZE,
        )
        return found.each(lambda data: Trial._from_json(data, self._session))

    def list_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING
    ) -> list[Trial]:
        """All trials of the experiment."""
        return list(self.iter_trials(sort_by, order_by))

    get_trials = list_trials

    def list_checkpoints(
        self,
        sort_by: str | CheckpointSortBy | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
        *,
        states: Sequence[CheckpointState] | None = None,
    ) -> list[Checkpoint]:
        """The checkpoints of all trials, by default sorted by the searcher's metric.

        ``sort_by`` names a validation metric or is a :class:`CheckpointSortBy`.
        """
        path = f"{self._path}/checkpoints"
        return _checkpoint.read(self._session, path, sort_by, order_by, max_results, states)

    def trials_dataframe(self) -> pd.DataFrame:
        """The trials, a row each, with the trial's id as the index.

        Columns: ``state``, ``steps_completed``, ``restarts``, ``searcher_metric``, ``start_time``,
        ``end_time``, and one for each hyperparameter (``hparams.lr``, ``hparams.optimizer.lr``). Raises
        ImportError without pandas.
        """
        from determined.experimental import _frames

        return _frames.of_trials(self.iter_trials())

    def metrics_dataframe(self, group: str = VALIDATION) -> pd.DataFrame:
        """Every report of ``group`` by the trials, a row each, with the trial's id as the index.

        Columns: ``trial_run_id``, ``steps_completed``, ``end_time``, and one for each metric
        (``metrics.loss``). Raises ImportError without pandas.
        """
        from determined.experimental import _frames

        trial_ids = [trial.id for trial in self.iter_trials()]
        reports = iter_metrics(self._session, trial_ids, group) if trial_ids else ()
        return _frames.of_reports(reports)

    def checkpoints_dataframe(self) -> pd.DataFrame:
        """The checkpoints, a row each, with the UUID as the index, in the order of :meth:`list_checkpoints`.

        Columns: ``trial_id``, ``steps_completed``, ``state``, ``report_time``, ``bytes``,
        ``searcher_metric``, and one for each validation metric of its step (``metrics.loss``). Raises
        ImportError without pandas.
        """
        from determined.experimental import _frames

        return _frames.of_checkpoints(self.list_checkpoints())

    def top_checkpoint(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> Checkpoint:
        """The first of :meth:`top_n_checkpoints`. Raises CheckpointNotFound if there is none."""
        return self.top_n_checkpoints(1, sort_by, smaller_is_better)[0]

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """The best checkpoint of each of the ``limit`` best trials, best first.

        Checkpoints are compared by the searcher's metric, or by the validation metric ``sort_by``,
        which needs ``smaller_is_better`` (else ValueError). Those without the metric come last.

        Raises CheckpointNotFound if there is none.
        """
        searcher = self.get_config().get("searcher") or {}
        ordered = _checkpoint.best_first(
            self._session, f"{self._path}/checkpoints", sort_by, smaller_is_better, searcher
        )
        best_of_trial: dict[int | None, Checkpoint] = {}
        for checkpoint in ordered:
            best_of_trial.setdefault(checkpoint.trial_id, checkpoint)
            if len(best_of_trial) >= limit:
                break
        if not best_of_trial:
            raise _checkpoint.none_found(f"experiment {self._id}")
        return list(best_of_trial.values())

    def logs(self, follow: bool = False, **filters: Any) -> Iterator[str]:
        """Log lines of the first trial; ``filters`` are those of :meth:`Trial.logs`."""
        return self.await_first_trial().logs(follow, **filters)

    def download_code(self, output_dir: str | None = None) -> str:
        """Writes the submitted model definition to ``exp-<id>_model_def.tar.gz``.

        ``output_dir`` (default: the current directory) is created if necessary. Returns the file's path.
        """
        directory = Path(output_dir or ".").expanduser()
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"exp-{self._id}_model_def.tar.gz"
        path.write_bytes(self.model_definition())
        return str(path)

    def download_tensorboard_files(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copies the trials' TensorBoard files to ``path``, by default ``tensorboard/<id>``. Returns the
        directory for ``tensorboard --logdir``.

        A repeated call, while the experiment runs, copies the files that have grown. Raises
        errors.NoDirectStorageAccess if this machine cannot reach the checkpoint storage.
        """
        target = Path(path) if path is not None else Path("tensorboard") / str(self._id)
        if self.config is None:
            self.reload()
        cluster = self._session.get("/api/v1/master")["clusterId"]
        prefix = f"{cluster}/tensorboard/experiment/{self._id}"
        _tensorboard.fetch((self.config or {})["checkpoint_storage"], prefix, target)
        return str(target)

    def delete_tensorboard_files(self) -> int | None:
        """Starts to delete the trials' TensorBoard files; the experiment must have ended.

        Returns the deletion's id, or None if they are deleted already. Raises ConflictException,
        ForbiddenException.
        """
        path = f"{self._path}/tensorboard-files"
        answer = self._session.delete(path, params={"timeout_seconds": 0})
        deletion_id: int | None = answer.get("deletionId")
        return deletion_id

    def page(self) -> str:
        """The address of its page, which asks a browser for a login; `det open ID` logs it in."""
        from determined.common.wire import pages

        return self._session.master + pages.experiment(self._id)

    def mlflow_page(self) -> str | None:
        """The address of the trials in MLflow, of a single one's run; None if the service has no MLflow."""
        if "mlflow" not in self._session.get("/").get("links", ()):
            return None
        from determined.common.wire import mlflow

        searcher = self.get_config()["searcher"]
        if searcher["name"] == "single":
            for trial in self.iter_trials(limit=1, max_results=1):
                return self._session.master + mlflow.trial(self._id, trial.id)
        smaller = searcher.get("smaller_is_better", True)
        page = mlflow.experiment(self._id, searcher.get("metric"), smaller)
        return self._session.master + page

    def plot(self, path: str | os.PathLike[str] | None = None) -> str:
        """Writes the experiment's plot, an HTML page that needs no network, to ``experiment_<id>.html``.

        ``path`` names another file. Returns the file's path. Raises FileNotFoundError if its directory does
        not exist, before anything is drawn.
        """
        target = path or f"experiment_{self._id}.html"
        return write_page(self._session, f"{self._path}/plot", target)

    def model_definition(self) -> bytes:
        """The model definition as a tar.gz."""
        return base64.b64decode(self._session.get(f"{self._path}/model_def")["b64Tgz"])

    # Name, description, notes and labels.

    def set_name(self, name: str) -> None:
        """Renames it."""
        self._patch(name=name)

    def set_description(self, description: str) -> None:
        """Changes the description."""
        self._patch(description=description)

    def set_notes(self, notes: str) -> None:
        """Replaces the notes."""
        self._patch(notes=notes)

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replaces all labels."""
        self._patch(labels=sorted(set(labels)))

    def add_label(self, label: str) -> None:
        """Adds a label; if the experiment has it already, nothing changes."""
        self.labels = set(self._session.put(self._label(label))["labels"])

    def remove_label(self, label: str) -> None:
        """Removes a label; if the experiment does not have it, nothing changes."""
        self.labels = set(self._session.delete(self._label(label)).get("labels", ()))

    def _label(self, label: str) -> str:
        return f"{self._path}/labels/{quote(label, safe='')}"

    def _patch(self, **changes: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._session.patch(self._path, json={"id": self._id, **changes})
        if answer.get("experiment"):
            self._fill(answer["experiment"], None)
        return answer

    def _repr_html_(self) -> str:
        from determined.experimental import _notebook_view

        found = self.document
        facts = {
            "state": self.state and self.state.value.removeprefix("STATE_").lower(),
            "why": found.get("reason") or None,
            "searcher": found.get("searcherType"),
            "trials": found.get("numTrials"),
            f"best {found.get('searcherMetric') or 'value'}": found.get("bestTrialSearcherMetric"),
            "best trial": found.get("bestTrialId"),
            "owner": found.get("username"),
            "project": found.get("projectName"),
        }
        return _notebook_view.table(f"experiment {self._id} {self.name or ''}", self.page(), facts)

    def __repr__(self) -> str:
        return f"Experiment(id={self._id}, name={self.name!r})"


ExperimentReference = Experiment
