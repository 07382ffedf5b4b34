"""Running a search method in an experiment, with its state in the experiment's checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from determined import core, errors
from determined.common import api
from determined.experimental._experiment_verbs import Config
from determined.searcher._method import SearchMethod
from determined.searcher._operations import Operation, SavedOperation
from determined.searcher._runner import SearchRunner, create_experiment, logger, login


class RemoteSearchRunner(SearchRunner):
    """Runs a search method in a trial of a Core API experiment. The search is a second experiment.

    Each saved state is a checkpoint of that trial (``steps_completed`` is the last event's id), so a
    restarted trial continues its search; only the last two are kept. If the trial is preempted (for
    example because its experiment is paused), :meth:`run` returns early and the script should end.

    Args:
        search_method: the method; a new object.
        context: the context of ``core.init()``.
        session: a login; by default the task's own, which acts for the experiment's owner.

    Raises RuntimeError outside of the cluster.
    """

    # Between two requests the preemption signal is checked.
    poll_seconds = 5.0

    def __init__(
        self,
        search_method: SearchMethod,
        context: core.Context,
        session: api.Session | None = None,
    ) -> None:
        super().__init__(search_method)
        if context.info is None:
            raise RuntimeError(
                "RemoteSearchRunner runs in a trial on the cluster; elsewhere use LocalSearchRunner"
            )
        self.context = context
        self.session = session
        self.latest_checkpoint: str | None = context.info.latest_checkpoint
        self._stored: list[str] = []

    def run(
        self,
        exp_config: Config,
        model_dir: str | Path | None = None,
        includes: Iterable[str | Path] | None = None,
    ) -> int:
        """Submits the experiment, or continues that of an earlier leg; returns at its end.

        Arguments, result and exceptions are those of :meth:`LocalSearchRunner.run`. An exception is a
        failure of the trial, which the cluster restarts (``max_restarts``).
        """
        determined = login(self.session)
        operations: list[Operation] | None = None
        if self.latest_checkpoint is not None:
            experiment_id, operations = self.load_state(self.latest_checkpoint)
            logger.info("Resuming HP searcher for experiment %s", experiment_id)
        else:
            experiment_id = create_experiment(determined, exp_config, model_dir, includes)
            self.state.experiment_id = experiment_id
            self.save_state(experiment_id, [])
        self.run_experiment(experiment_id, determined._session, operations)
        return experiment_id

    def load_state(self, storage_id: str) -> tuple[int, list[Operation]]:
        """Loads a checkpoint's state; returns the experiment's id and the last event's operations."""
        with self.context.checkpoint.restore_path(storage_id) as path:
            self.state, experiment_id = self.search_method.load(path)
            saved = json.loads((path / "ops").read_text())
        self._stored = [storage_id]
        return experiment_id, [SavedOperation(operation) for operation in saved]

    def save_state(self, experiment_id: int, operations: Sequence[Operation]) -> None:
        """Stores a checkpoint. The one before is kept, the older one is deleted."""
        metadata = {"steps_completed": self.state.last_event_id}
        with self.context.checkpoint.store_path(metadata) as (path, storage_id):
            self.search_method.save(self.state, path, experiment_id=experiment_id)
            saved = [operation.to_json() for operation in operations]
            (path / "ops").write_text(json.dumps(saved))
        self._stored.append(storage_id)
        for old in self._stored[:-2]:
            self._delete(old)
        self._stored = self._stored[-2:]

    def _delete(self, storage_id: str) -> None:
        try:
            self.context.checkpoint.delete(storage_id)
        except (errors.StorageError, api.errors.APIException) as error:
            # A checkpoint that is left costs only space; it is removed at the experiment's end.
            logger.warning("could not delete the old checkpoint %s: %s", storage_id, error)

    def _interrupted(self) -> bool:
        if not self.context.preempt.should_preempt():
            return False
        logger.info(
            "preempted after event %s of experiment %s; %s",
            self.state.last_event_id,
            self.state.experiment_id,
            self._how_to_go_on(),
        )
        return True

    def _how_to_go_on(self) -> str:
        return "the next leg of this trial continues the search"
