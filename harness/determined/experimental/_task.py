"""Tasks: commands, notebooks, shells, TensorBoards, generic tasks, and whatever else runs on the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

import orjson

from determined.common.api import tasks
from determined.common.wire.kinds import TaskKind

if TYPE_CHECKING:
    from determined.common.api.session import Session
    from determined.common.api.transport import Response
    from determined.experimental._logs import LogFilters

TASKS = "/api/v1/tasks"
GENERIC_TASKS = "/api/v1/generic-tasks"
NOTEBOOK_FILES = "/api/v1/notebook-files"
_TERMINATED = "STATE_TERMINATED"


class Task:
    """A task at the service. Attributes are as of the last :meth:`reload`.

    Attributes:
        id: its id.
        kind: the :class:`TaskKind` of a task that people launch; None for other tasks (a trial's, a generic
            one), and where the kind does not matter.
        state: the name of its state: QUEUED, PULLING, STARTING, WAITING (its server starts), RUNNING,
            TERMINATING, TERMINATED; without a kind ACTIVE, PAUSED, COMPLETED, CANCELED, ERROR and the like.
        config: the complete configuration, of a task with a kind.
        warnings: what the service warned of when the task was launched from here.
        document: the service's JSON, including fields that are not attributes.
    """

    def __init__(self, session: Session, task_id: str, kind: TaskKind | None = None) -> None:
        self._session = session
        self.id = task_id
        self.kind = kind
        self.state: str | None = None
        self.config: dict[str, Any] | None = None
        self.warnings: list[str] = []
        self.document: dict[str, Any] = {}

    @classmethod
    def _from_json(
        cls,
        data: dict[str, Any],
        session: Session,
        kind: TaskKind,
        config: dict[str, Any] | None = None,
    ) -> Task:
        task = cls(session, data["id"], kind)
        task._fill(data, config)
        return task

    @property
    def _path(self) -> str:
        """The path of the routes that only this kind of task has."""
        where = TASKS if self.kind is None else f"/api/v1/{self.kind.plural}"
        return f"{where}/{self._quoted}"

    @property
    def _task_path(self) -> str:
        """The path of the routes that every task has."""
        return f"{TASKS}/{self._quoted}"

    @property
    def _quoted(self) -> str:
        return quote(self.id, safe="")

    def _fill(self, data: dict[str, Any], config: dict[str, Any] | None) -> None:
        self.document = data
        state = data.get("state")
        self.state = None if state is None else str(state).removeprefix("STATE_")
        self.config = config or self.config

    def reload(self) -> None:
        """Fetches all attributes again. Raises NotFoundException."""
        answer = self._session.get(self._path)
        self._fill(answer["task" if self.kind is None else self.kind.value], answer.get("config"))

    def get_config(self) -> dict[str, Any]:
        """The complete configuration."""
        if self.kind is None:
            return dict(orjson.loads(self._session.get(f"{self._path}/config")["config"]))
        if self.config is None:
            self.reload()
        return dict(self.config or {})

    @property
    def has_ended(self) -> bool:
        """True if the task has ended; for a task with a kind."""
        return self.document.get("state") == _TERMINATED

    @property
    def exit_code(self) -> int:
        """As in a shell, for an ended task with a kind: its exit code, 128 plus its signal, else 1."""
        return tasks.exit_code(self.document)

    def waits_because(self) -> str | None:
        """Why a task with a kind waits for slots; None if no reason is known."""
        path = f"/api/v1/job-queues/{self.document['jobId']}/explanation"
        for one in self._session.get(path).get("waiting") or ():
            return str(one["reason"])
        return None

    def kill(self, *, from_root: bool = False) -> None:
        """Ends its processes at once, and the tasks below it. ``from_root``: also the tasks above it, and all
        that are below those.
        """
        body = {"taskId": self.id, "killFromRoot": from_root} if self.kind is None else {}
        self._session.post(f"{self._path}/kill", json=body)

    def pause(self) -> None:
        """Ends the processes of a generic task and of those below it; unpaused, they begin anew."""
        self._session.post(f"{self._task_path}/pause", json={})

    def unpause(self) -> None:
        """Lets a paused generic task, and those below it, wait for slots again."""
        self._session.post(f"{self._task_path}/unpause", json={})

    def set_priority(self, priority: int) -> list[str]:
        """Sets the priority of a task with a kind, 1 to 99; a lower number is more important, on
        Kubernetes a higher one.

        Returns the service's remarks.
        """
        answer = self._session.post(f"{self._path}/set_priority", json={"priority": priority})
        return list(answer.get("remarks") or ())

    def iter_logs(self, follow: bool = False, **filters: Unpack[LogFilters]) -> Iterator[str]:
        """Lines of the task's output, oldest first, each with its time, rank and level, and its line end.

        ``follow`` continues until the task has ended. ``filters`` are those of :meth:`Trial.iter_logs`.
        """
        return (entry["message"] for entry in self.iter_log_entries(follow, **filters))

    logs = iter_logs

    def iter_log_entries(
        self, follow: bool = False, **filters: Unpack[LogFilters]
    ) -> Iterator[dict[str, Any]]:
        """As :meth:`iter_logs`: the service's JSON of each line."""
        return chain.from_iterable(self.iter_log_batches(follow, **filters))

    def iter_log_batches(
        self, follow: bool = False, **filters: Unpack[LogFilters]
    ) -> Iterator[list[dict[str, Any]]]:
        """As :meth:`iter_log_entries`: each time those that arrived together."""
        from determined.experimental import _logs

        return _logs.iter_batches(self._session, f"{self._task_path}/logs", follow, filters)

    def visit(self, path: str) -> str:
        """An address at which a browser is logged in to a page of the task. It works once, for a minute."""
        return str(self._session.post(f"{self._task_path}/visits", json={"path": path})["url"])

    def open_door(self, node: int, *, again: bool, timeout_s: float) -> dict[str, Any]:
        """Opens a port through which a program beside the task is started: `det exec`.

        ``node``: which machine of a gang. ``again``: the port that was answered before is closed already.
        Returns the service's JSON: ``port``, ``secret``, ``agentId``, ``nodes``.
        """
        body = {"node": node, "again": again}
        return dict(self._session.post(f"{self._task_path}/doors", json=body, timeout=timeout_s))

    def returned_files(self) -> dict[str, Any]:
        """What is known of the files that the task changed (``return_files``), as the service's JSON.

        ``ready``: whether they can be fetched; ``remarks``: which files were left out, and why.
        """
        return dict(self._session.get(f"{self._task_path}/returned-files"))

    def open_returned_files(self) -> AbstractContextManager[Response]:
        """The tar.gz of :meth:`returned_files`, to be read with ``iter_bytes``."""
        return self._session.open(f"{self._task_path}/returned-files/archive")

    def delete_returned_files(self) -> None:
        """Deletes the files of :meth:`returned_files` at the service."""
        self._session.delete(f"{self._task_path}/returned-files")

    def delete_notebook_files(self) -> None:
        """Starts to delete the files that an ended notebook left; no other notebook can begin with them."""
        self._session.delete(f"{NOTEBOOK_FILES}/{self._quoted}")

    def __repr__(self) -> str:
        return f"Task(id={self.id!r}, kind={self.kind and self.kind.value!r})"


class TaskVerbs:
    """The methods of :class:`Determined` for tasks; most commands of `det` for tasks import no more."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list_tasks(
        self, kind: TaskKind, users: list[str] | None = None, *, workspace_id: int | None = None
    ) -> list[Task]:
        """The tasks of a kind, of these users or of all, in that workspace or in all."""
        given = {"limit": -1, "users": users, "workspaceId": workspace_id}
        params = {name: value for name, value in given.items() if value is not None}
        found = self._session.get(f"/api/v1/{kind.plural}", params=params)[kind.plural]
        return [Task._from_json(data, self._session, kind) for data in found]

    def get_task(self, task_id: str, kind: TaskKind | None = None) -> Task:
        """A task by its id. Raises NotFoundException."""
        task = Task(self._session, task_id, kind)
        task.reload()
        return task

    def list_allocations(self) -> dict[str, dict[str, Any]]:
        """What runs or waits for slots, tasks of every kind: the service's JSON by allocation."""
        return dict(self._session.get(TASKS, params={"limit": 0})["allocationIdToSummary"])

    def list_task_ids(self, limit: int = 1000) -> list[str]:
        """The ids of the tasks that run or wait, then of the latest ``limit`` tasks."""
        found = self._session.get(TASKS, params={"limit": limit})
        alive = (one["taskId"] for one in found["allocationIdToSummary"].values())
        return list(dict.fromkeys([*alive, *(one["taskId"] for one in found["tasks"])]))

    def launch_task(
        self,
        kind: TaskKind,
        config: dict[str, Any],
        context: str | Path | None = None,
        includes: Iterable[str | Path] = (),
        **fields: Any,
    ) -> Task:
        """Launches a command, notebook, shell or TensorBoard.

        Args:
            config: the configuration, with ``entrypoint`` for a command.
            context: a directory whose contents are sent along.
            includes: further files and directories to send.
            fields: further fields of the request: ``workspaceId``, ``experimentIds`` and ``trialIds`` of a
                TensorBoard, ``restoreId`` of a notebook.

        Raises ContextError before anything is sent, or BadRequestException.
        """
        answer = self._launch(kind, config, context, includes, fields)
        task = Task._from_json(answer[kind.value], self._session, kind, answer.get("config"))
        task.warnings = tasks.warnings_of(answer)
        return task

    def preview_notebook(
        self,
        config: dict[str, Any],
        context: str | Path | None = None,
        includes: Iterable[str | Path] = (),
        **fields: Any,
    ) -> tuple[dict[str, Any], list[str]]:
        """The complete configuration, and the warnings, of a notebook that is not launched; see
        :meth:`launch_task`.
        """
        answer = self._launch(
            TaskKind.NOTEBOOK, config, context, includes, {**fields, "preview": True}
        )
        return dict(answer["config"]), tasks.warnings_of(answer)

    def _launch(
        self,
        kind: TaskKind,
        config: dict[str, Any],
        context: str | Path | None,
        includes: Iterable[str | Path],
        fields: Mapping[str, Any],
    ) -> dict[str, Any]:
        files = tasks.files_of(context, includes)
        return tasks.TaskLaunch(kind.plural, config, files, more=fields).send(self._session)

    def create_generic_task(
        self,
        config: str,
        context: str | Path | None = None,
        includes: Iterable[str | Path] = (),
        *,
        project_id: int | None = None,
        forked_from: str | None = None,
        parent_id: str | None = None,
        inherit_context: bool | None = None,
        no_pause: bool | None = None,
    ) -> Task:
        """Creates a generic task: a program that can be paused, and can be below another task.

        Args:
            config: the configuration as YAML text; empty: that of ``forked_from``.
            context, includes: the files to send.
            project_id: the task's project.
            forked_from: the task whose files it takes.
            parent_id: the task above it.
            inherit_context: it takes the files of the task above it.
            no_pause: it cannot be paused.

        Raises ContextError before anything is sent, or BadRequestException.
        """
        body = {
            "config": config,
            "contextDirectory": tasks.files_of(context, includes),
            "projectId": project_id,
            "forkedFrom": forked_from,
            "parentId": parent_id,
            "inheritContext": inherit_context,
            "noPause": no_pause,
        }
        given = {name: value for name, value in body.items() if value is not None}
        # Not repeated: a second request would create a second task.
        answer = self._session.post(
            GENERIC_TASKS, json=given, timeout=tasks.TIMEOUT_S, max_retries=0
        )
        task = Task(self._session, answer["taskId"])
        task.warnings = tasks.warnings_of(answer)
        return task

    def list_notebook_files(self, everybody: bool = False) -> list[dict[str, Any]]:
        """The ended notebooks whose files are kept, one's own or everybody's, as the service's JSON."""
        params = {"everybody": everybody, "limit": -1}
        return list(self._session.get(NOTEBOOK_FILES, params=params)["notebookFiles"])
