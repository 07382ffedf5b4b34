"""The SDK's root object: a login at a service."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from determined.common.api import Session, authentication, certs, get_default_master_url, pages
from determined.common.api.pages import Listing
from determined.common.api.transport import AnyTransport, HttpTransport
from determined.experimental import _checkpoint, _deletion
from determined.experimental._checkpoint import Checkpoint
from determined.experimental._cluster import ClusterVerbs
from determined.experimental._enums import (
    ExperimentSortBy,
    ExperimentState,
    ModelSortBy,
    OrderBy,
)
from determined.experimental._experiment import EXPERIMENTS, Experiment
from determined.experimental._metrics import TRAINING, VALIDATION, TrialMetrics, iter_metrics
from determined.experimental._model import MODELS, Model, model_path
from determined.experimental._retraining import RetrainingVerbs
from determined.experimental._task import TaskVerbs
from determined.experimental._trial import Trial
from determined.experimental._user import User

logger = logging.getLogger("determined")

Config = str | Path | dict[str, Any]

_AT_ONCE = 50
"""Experiments of one request."""


def _parts(ids: Sequence[int]) -> Iterator[list[int]]:
    for begin in range(0, len(ids), _AT_ONCE):
        yield list(ids[begin : begin + _AT_ONCE])


class Determined(TaskVerbs, ClusterVerbs, RetrainingVerbs):
    """A login at the service. The functions of ``client`` use one such login for the whole process.

    ``master`` defaults to ``$DET_MASTER``, then the local cluster, then ``http://localhost:8080``. The
    rules for credentials are in :mod:`determined.common.api.authentication`. ``cert_path`` is a PEM
    file to trust, ``cert_name`` the name expected in the server's certificate; ``noverify`` trusts
    any certificate. ``transport`` replaces the network in tests.

    Raises:
        MasterNotFoundException, UnauthenticatedException.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
        *,
        transport: AnyTransport | None = None,
    ) -> None:
        if transport is None and (cert_path or cert_name or noverify):
            address = master or get_default_master_url()
            cert = certs.default_load(address, cert_path, cert_name, noverify)
            transport = HttpTransport(address, cert)
        self._session = authentication.connect(master, user, password, transport=transport)

    @classmethod
    def _with_session(cls, session: Session) -> Determined:
        client = cls.__new__(cls)
        client._session = session
        return client

    # Users.

    def whoami(self) -> User:
        """The user who is logged in."""
        return User._from_json(authentication.current_user(self._session), self._session)

    def get_session_username(self) -> str:
        """The name of the user who is logged in."""
        return self.whoami().username

    def logout(self) -> None:
        """Ends this login, on this machine and at the service."""
        authentication.logout(self._session, self.get_session_username())

    def list_users(self, active: bool | None = None) -> list[User]:
        """All users, or only the active or inactive ones if ``active`` is given."""
        found = pages.read(self._session, "/api/v1/users", "users", {"active": active})
        return [User._from_json(data, self._session) for data in found]

    def create_user(
        self, username: str, admin: bool, password: str | None = None, remote: bool = False
    ) -> User:
        """Creates a user; without ``password`` the password is blank. Raises ForbiddenException unless
        the caller is an administrator."""
        given = {"username": username, "admin": admin, "active": True, "remote": remote}
        body: dict[str, Any] = {"user": given}
        if password is not None:
            body |= {"password": authentication.salt_and_hash(password), "isHashed": True}
        return User._from_json(
            self._session.post("/api/v1/users", json=body)["user"], self._session
        )

    def get_user_by_id(self, user_id: int) -> User:
        """Raises NotFoundException."""
        return User._from_json(self._session.get(f"/api/v1/users/{user_id}")["user"], self._session)

    def get_user_by_name(self, user_name: str) -> User:
        """Raises NotFoundException."""
        path = f"/api/v1/users/{quote(user_name, safe='')}/by-username"
        return User._from_json(self._session.get(path)["user"], self._session)

    # Experiments.

    def create_experiment(
        self,
        config: Config,
        model_dir: str | Path | None = None,
        includes: Iterable[str | Path] | None = None,
        project_id: int | None = None,
        template: str | None = None,
        parent_id: int | None = None,
        paused: bool = False,
    ) -> Experiment:
        """Submits an experiment and starts it, unless ``paused``.

        Args:
            config: a YAML file's path, a mapping, or YAML text (more than one line).
            model_dir: the directory with the training code; ``docs/reference/cli.md`` lists the files that
                are left out.
            includes: further files and directories to put into the trial's working directory.
            project_id: the experiment's project.
            template: the name of a template at the service, for fields that ``config`` does not set.
            parent_id: the experiment from which this one is derived.
            paused: no trial starts before :meth:`Experiment.activate`. Ours, beside Determined's SDK.

        Raises:
            ConfigError: the configuration is invalid; nothing was sent.
            ContextError: ``model_dir`` or an include cannot be sent.
            BadRequestException: the service refused it.
        """
        # Imported here: packing files is more than most programs need.
        from determined.experimental import _submission

        submission = _submission.plan(
            config,
            model_dir,
            includes or (),
            project_id=project_id,
            template=template,
            parent_id=parent_id,
            activate=not paused,
        )
        made = submission.send(self._session)
        for warning in made.warnings:
            logger.warning("experiment %d: %s", made.experiment.id, warning)
        return made.experiment

    def get_experiment(self, experiment_id: int) -> Experiment:
        """Raises NotFoundException."""
        experiment = Experiment(experiment_id, self._session)
        experiment.reload()
        return experiment

    def list_experiments(
        self,
        sort_by: ExperimentSortBy | None = None,
        order_by: OrderBy | None = None,
        experiment_ids: list[int] | None = None,
        labels: list[str] | None = None,
        users: list[str] | None = None,
        states: list[ExperimentState] | None = None,
        name: str | None = None,
        project_id: int | None = None,
        *,
        archived: bool | None = None,
    ) -> list[Experiment]:
        """The experiments that match all arguments; ``name`` matches a part of the name."""
        found = self.iter_experiments(
            sort_by, order_by, labels, users, states, name, project_id, archived=archived
        )
        wanted = set(experiment_ids) if experiment_ids is not None else None
        return [one for one in found if wanted is None or one.id in wanted]

    def iter_experiments(
        self,
        sort_by: ExperimentSortBy | None = None,
        order_by: OrderBy | None = None,
        labels: list[str] | None = None,
        users: list[str] | None = None,
        states: list[ExperimentState] | None = None,
        name: str | None = None,
        project_id: int | None = None,
        *,
        archived: bool | None = None,
        offset: int = 0,
        max_results: int | None = None,
        page_size: int = pages.PAGE_SIZE,
    ) -> Listing[Experiment]:
        """As :meth:`list_experiments`, one at a time, from number ``offset`` on, at most ``max_results``."""
        params = {
            "sortBy": sort_by.value if sort_by else None,
            "orderBy": order_by.value if order_by else None,
            "labels": labels,
            "users": users,
            "states": [state.value for state in states] if states else None,
            "name": name,
            "projectId": project_id,
            "archived": archived,
        }
        found = pages.read(
            self._session,
            EXPERIMENTS,
            "experiments",
            params,
            offset=offset,
            limit=max_results,
            page_size=page_size,
        )
        return found.each(lambda data: Experiment._from_json(data, self._session))

    def find_experiments(self, experiment_ids: Sequence[int]) -> list[Experiment]:
        """Those of these experiments that exist."""
        return [
            Experiment._from_json(data, self._session)
            for some in _parts(experiment_ids)
            for data in pages.read(
                self._session, EXPERIMENTS, "experiments", {"experimentIdFilter.incl": some}
            )
        ]

    def change_experiments(self, action: str, experiment_ids: Sequence[int]) -> dict[int, str]:
        """Does to many experiments what their method of the same name does.

        ``action`` is activate, pause, cancel, kill, archive or unarchive. Returns the refusals by experiment.
        """
        return {
            result["id"]: result["error"]
            for some in _parts(experiment_ids)
            for result in self._session.post(
                f"{EXPERIMENTS}/{action}", json={"experimentIds": some}
            )["results"]
            if result["error"]
        }

    def get_trial(self, trial_id: int) -> Trial:
        """Raises NotFoundException."""
        trial = Trial(trial_id, self._session)
        trial.reload()
        return trial

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Raises NotFoundException."""
        checkpoint = Checkpoint(self._session, uuid)
        checkpoint.reload()
        return checkpoint

    def delete_checkpoints(self, uuids: Sequence[str]) -> int | None:
        """Deletes several checkpoints at once; see :meth:`Checkpoint.delete`."""
        return _checkpoint.delete(self._session, uuids)

    def remove_checkpoint_files(self, uuids: Sequence[str], globs: Sequence[str]) -> int | None:
        """Deletes files of several checkpoints; see :meth:`Checkpoint.remove_files`."""
        return _checkpoint.remove_files(self._session, uuids, globs)

    def wait_for_deletion(
        self, deletion_id: int | None, timeout_s: float = _deletion.DELETION_TIMEOUT_S
    ) -> bool:
        """Waits until a deletion is done; False if it takes longer than ``timeout_s``. None is done already.

        Raises DeleteFailedException with the reason.
        """
        return _deletion.wait_for_deletion(self._session, deletion_id, timeout_s)

    # Models.

    def create_model(
        self,
        name: str,
        description: str | None = "",
        metadata: dict[str, Any] | None = None,
        labels: list[str] | None = None,
        workspace_name: str | None = None,
    ) -> Model:
        """Adds a model to the registry. Names are unique, whatever their case.

        Raises BadRequestException; APIException (409) when the name is taken; NotFoundException for any
        workspace but "Uncategorized".
        """
        given = {
            "description": description,
            "metadata": metadata,
            "labels": labels,
            "workspaceName": workspace_name,
        }
        body = {key: value for key, value in given.items() if value is not None}
        # The id lets the service recognise a request that is sent again after a lost answer.
        body |= {"name": name, "requestId": str(uuid.uuid4())}
        return Model._from_json(self._session.post(MODELS, json=body)["model"], self._session)

    def get_model(self, identifier: str | int) -> Model:
        """A model by its name, whatever the case, or by its id. Raises NotFoundException."""
        found = self._session.get(model_path(identifier))["model"]
        return Model._from_json(found, self._session)

    def get_model_by_id(self, model_id: int) -> Model:
        """Raises NotFoundException."""
        return self.get_model(model_id)

    def list_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASCENDING,
        name: str | None = None,
        description: str | None = None,
        model_id: int | None = None,
        workspace_names: list[str] | None = None,
        workspace_ids: list[int] | None = None,
    ) -> list[Model]:
        """The models that match all arguments; ``name`` and ``description`` match a part."""
        params = {
            "sortBy": sort_by.value,
            "orderBy": order_by.value,
            "name": name or None,
            "description": description or None,
            "id": model_id,
            "workspaceNames": workspace_names,
            "workspaceIds": workspace_ids,
        }
        found = pages.read(self._session, MODELS, "models", params)
        return [Model._from_json(data, self._session) for data in found]

    get_models = list_models

    def get_model_labels(self) -> list[str]:
        """The labels of all models that are not archived, the most used ones first."""
        found: list[str] = self._session.get("/api/v1/model/labels")["labels"]
        return found

    # Metrics.

    def iter_trials_metrics(self, trial_ids: list[int], group: str) -> Iterator[TrialMetrics]:
        """Every report of ``group`` by these trials."""
        return iter_metrics(self._session, trial_ids, group)

    stream_trials_metrics = iter_trials_metrics

    def stream_trials_training_metrics(self, trial_ids: list[int]) -> Iterator[TrialMetrics]:
        """Every training report by these trials."""
        return iter_metrics(self._session, trial_ids, TRAINING)

    def stream_trials_validation_metrics(self, trial_ids: list[int]) -> Iterator[TrialMetrics]:
        """Every validation report by these trials."""
        return iter_metrics(self._session, trial_ids, VALIDATION)
