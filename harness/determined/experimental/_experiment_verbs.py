"""Experiments: submitted, found, and changed many at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from determined.common.api import Session, pages
from determined.common.api.pages import Listing
from determined.experimental._enums import ExperimentSortBy, ExperimentState, OrderBy
from determined.experimental._experiment import EXPERIMENTS, Experiment
from determined.experimental._page_file import write_page

logger = logging.getLogger("determined")

Config = str | Path | dict[str, Any]

_AT_ONCE = 50
"""Experiments of one request."""


def _parts(ids: Sequence[int]) -> Iterator[list[int]]:
    for begin in range(0, len(ids), _AT_ONCE):
        yield list(ids[begin : begin + _AT_ONCE])


class ExperimentVerbs:
    """The methods of :class:`~determined.experimental.Determined` for experiments."""

    def __init__(self, session: Session) -> None:
        self._session = session

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
        query: str | None = None,
    ) -> list[Experiment]:
        """The experiments that match all arguments; ``name`` matches a part of the name.

        ``query``: terms that must all hold, such as ``resnet -state:error lr<0.01 metric<=0.1``.
        """
        found = self.iter_experiments(
            sort_by,
            order_by,
            labels,
            users,
            states,
            name,
            project_id,
            archived=archived,
            query=query,
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
        query: str | None = None,
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
            "query": query,
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

    def write_report(
        self,
        path: str | os.PathLike[str],
        experiments: Sequence[int] = (),
        trials: Sequence[int] = (),
        *,
        best: int | None = None,
    ) -> str:
        """Writes an experiment, or trials side by side, as one HTML file that needs no network.

        It shows what the experiment is, the curves, the hyperparameters that differ, the values of each trial
        and the configuration without its secrets.

        Args:
            path: the file; an existing one is replaced.
            experiments: ids. An experiment alone is shown with all trials; of several the best one each.
            trials: ids of further trials; at most 200 trials are shown.
            best: shows so many of each experiment's trials instead, the best.

        Returns:
            The file's path.

        Raises:
            NotFoundException: an experiment or a trial does not exist, or the user may not see it.
            FileNotFoundError: the file's directory does not exist; nothing was asked for.
        """
        params = {"experimentIds": list(experiments), "trialIds": list(trials), "best": best or 0}
        return write_page(self._session, "/api/v1/report", path, params)

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
