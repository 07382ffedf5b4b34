"""The cluster: agents and their slots, resource pools, the job queue, accounting, the service itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from determined.common.api import pages

if TYPE_CHECKING:
    from determined.common.api.pages import Listing
    from determined.common.api.session import Session

JOBS = "/api/v1/job-queues"
MESSAGE = "/api/v1/master/cluster_message"


class Agent:
    """A machine that runs trials and other tasks. Attributes are as of the list that it comes from.

    Attributes:
        id: its id.
        document: the service's JSON: ``state``, ``slots``, ``machines``, ``resourcePools``, ``addresses`` and
            others.
    """

    def __init__(
        self, session: Session, agent_id: str, document: dict[str, Any] | None = None
    ) -> None:
        self._session = session
        self.id = agent_id
        self.document = document or {}

    @property
    def _path(self) -> str:
        return f"/api/v1/agents/{quote(self.id, safe='')}"

    def enable(self) -> None:
        """Gives the agent work again."""
        self._session.post(f"{self._path}/enable")

    def disable(self, drain: bool = False) -> None:
        """Gives the agent no more work. What runs there starts again elsewhere, unless ``drain``."""
        self._session.post(f"{self._path}/disable", json={"drain": drain})

    def enable_machine(self, machine: str) -> None:
        """Gives one of its machines work again, if it stands for several."""
        self._session.post(f"{self._path}/machines/{quote(machine, safe='')}/enable")

    def disable_machine(self, machine: str, drain: bool = False) -> None:
        """Gives one of its machines no more work; see :meth:`disable`."""
        path = f"{self._path}/machines/{quote(machine, safe='')}/disable"
        self._session.post(path, json={"drain": drain})

    def enable_slot(self, slot_id: int) -> None:
        """Gives one of its slots work again."""
        self._session.post(f"{self._path}/slots/{slot_id}/enable")

    def disable_slot(self, slot_id: int, drain: bool = False) -> None:
        """Gives one of its slots no more work; see :meth:`disable`."""
        self._session.post(f"{self._path}/slots/{slot_id}/disable", json={"drain": drain})

    def remove(self) -> None:
        """Takes a lost agent off the list; what it ran starts again elsewhere. Administrators only."""
        self._session.delete(self._path)

    def __repr__(self) -> str:
        return f"Agent(id={self.id!r})"


class ClusterVerbs:
    """What :class:`Determined` does with the cluster; `det` imports no more for its commands for it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list_agents(self) -> list[Agent]:
        """The agents, also those that are silent and those that have ended."""
        found = pages.read(self._session, "/api/v1/agents", "agents")
        return [Agent(self._session, data["id"], data) for data in found]

    def list_resource_pools(self) -> list[dict[str, Any]]:
        """The resource pools, as the service's JSON."""
        return list(pages.read(self._session, "/api/v1/resource-pools", "resourcePools"))

    def iter_jobs(
        self,
        resource_pool: str | None = None,
        *,
        reverse: bool = False,
        offset: int = 0,
        max_results: int | None = None,
        page_size: int = pages.PAGE_SIZE,
    ) -> Listing[dict[str, Any]]:
        """The jobs of a resource pool or of all: those with slots, then those that wait, in order of service
        or in ``reverse``. The service's JSON of each.
        """
        params = {
            "resourcePool": resource_pool,
            "orderBy": "ORDER_BY_DESC" if reverse else "ORDER_BY_ASC",
        }
        found = pages.read(
            self._session,
            f"{JOBS}-v2",
            "jobs",
            params,
            offset=offset,
            limit=max_results,
            page_size=page_size,
        )
        return found.each(lambda item: item.get("full") or {})

    def update_jobs(self, updates: Sequence[Mapping[str, Any]]) -> list[str]:
        """Changes jobs, one after the other; the first one that is refused ends it.

        Each update has a ``jobId`` and one of ``priority``, ``weight``, ``resourcePool``, ``aheadOf`` and
        ``behindOf``. Returns the service's remarks. Raises BadRequestException.
        """
        answer = self._session.post(JOBS, json={"updates": list(updates)})
        return list(answer.get("remarks") or ())

    def explain_job(self, job_id: str) -> dict[str, Any]:
        """Why each trial of a job waits, and what has to end before the first one starts: the service's JSON
        with ``job``, ``waiting`` and ``fallback``.
        """
        found: dict[str, Any] = self._session.get(f"{JOBS}/{quote(job_id, safe='')}/explanation")
        return found

    def accounting(self, table: str, params: Mapping[str, str]) -> list[dict[str, Any]]:
        """Who used which slots: the entries of ``raw`` (``timestamp_after``, ``timestamp_before``) or of
        ``aggregated`` (``start_date``, ``end_date``, ``period``). See docs/operate/accounting.md.
        """
        answer = self._session.get(f"/api/v1/resources/allocation/{table}", params=params)
        return list(answer["resourceEntries"])

    def accounting_csv(self, table: str, params: Mapping[str, str]) -> Iterator[str]:
        """As :meth:`accounting`, as CSV in pieces; ``allocations-csv`` is a table too."""
        return self._session.stream_text(f"/resources/allocation/{table}", params=params)

    def iter_service_log(
        self, *, follow: bool = False, tail: int | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """The service's own log, as far as it is still in its memory: each time the entries that arrived
        together. Administrators only.
        """
        asked = {"follow": follow, "offset": 0 if tail is None else -tail}
        for batch in self._session.stream_batches("/api/v1/master/logs", params=asked):
            yield [one["logEntry"] for one in batch]

    def get_cluster_config(self) -> dict[str, Any]:
        """The cluster configuration in force, secrets masked: ``config``, and ``refusal`` if the file is not
        in force. Administrators only.
        """
        found: dict[str, Any] = self._session.get("/api/v1/master/config")
        return found

    def get_cluster_message(self) -> dict[str, Any] | None:
        """What administrators tell all users now: ``message``, ``startTime``, ``endTime``, ``createdTime``;
        None: nothing. Administrators also get a message that begins later.
        """
        found: dict[str, Any] | None = self._session.get(MESSAGE)["clusterMessage"]
        return found

    def set_cluster_message(
        self,
        message: str,
        *,
        start: str | None = None,
        end: str | None = None,
        duration: str | None = None,
    ) -> None:
        """Tells all users a message, in place of the one before. Administrators only.

        Args:
            start, end: when they see it, in RFC 3339; default: from now on, for ever.
            duration: in place of ``end``: the time from ``start`` on, such as ``1h30m``, ``5d`` or ``2w``.

        Raises BadRequestException.
        """
        body = {"message": message, "startTime": start, "endTime": end, "duration": duration}
        given = {name: value for name, value in body.items() if value is not None}
        self._session.put(MESSAGE, json=given)

    def clear_cluster_message(self) -> None:
        """Takes the message away. Administrators only."""
        self._session.delete(MESSAGE)

    def preview_search(self, config: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
        """The trials that a search would create, simulated by the service.

        ``config`` is complete, or has ``searcher`` and ``hyperparameters``.
        """
        body = {"config": config, "seed": seed}
        answer = self._session.post("/api/v1/preview-hp-search", json=body)
        found: dict[str, Any] = answer["preview"]
        return found
