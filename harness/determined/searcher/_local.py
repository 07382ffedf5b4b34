"""Running a search method on the user's machine, with its state in a directory."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from determined.common.api import Session
from determined.experimental._experiment_verbs import Config
from determined.searcher._method import SearchMethod
from determined.searcher._operations import Operation, SavedOperation
from determined.searcher._runner import SearchRunner, create_experiment, logger, login
from determined.searcher._state import SearcherState

EXPERIMENT_ID_FILE = "experiment_id.txt"


class LocalSearchRunner(SearchRunner):
    """Runs a search method on this machine; the trials run on the cluster.

    Args:
        search_method: the method; always a new object, even to continue an earlier search.
        searcher_dir: the directory of the state, by default the working directory. If it has the
            state of an earlier runner, :meth:`run` continues that runner's experiment.
        session: a login; by default that of :mod:`determined.experimental.client`.

    The directory holds ``experiment_id.txt`` and ``exp_<id>/event_<n>``, the state after event n with
    the operations that answer it; ``exp_<id>/event_id`` is the number of the last complete one.

    Raises FileExistsError if ``searcher_dir`` is a file.
    """

    def __init__(
        self,
        search_method: SearchMethod,
        searcher_dir: str | Path | None = None,
        session: Session | None = None,
    ) -> None:
        super().__init__(search_method)
        self.session = session
        self.searcher_dir = Path(searcher_dir) if searcher_dir is not None else Path.cwd()
        if self.searcher_dir.exists() and not self.searcher_dir.is_dir():
            raise FileExistsError(f"searcher_dir {self.searcher_dir} is not a directory")
        self.searcher_dir.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        exp_config: Config,
        model_dir: str | Path | None = None,
        includes: Iterable[str | Path] | None = None,
    ) -> int:
        """Submits the experiment, or continues the one in ``searcher_dir``; returns at its end.

        Args:
            exp_config: as for ``client.create_experiment``; with ``searcher.name: custom``.
            model_dir: the training code; by default the working directory.
            includes: further files for the trials' working directory.

        Returns the experiment's id; ``state.experiment_completed`` tells whether it completed.

        Raises:
            BlockingIOError: another runner is using ``searcher_dir``.
            ValueError: the configuration has another searcher.
            Any exception of the search method's handlers. Call it again to continue.
        """
        with self._alone():
            determined = login(self.session)
            id_file = self.searcher_dir / EXPERIMENT_ID_FILE
            operations: list[Operation] | None = None
            if id_file.exists():
                experiment_id = int(id_file.read_text())
                logger.info("Resuming HP searcher for experiment %s", experiment_id)
            else:
                experiment_id = create_experiment(determined, exp_config, model_dir, includes)
                _write_whole(id_file, str(experiment_id))
            if (self._folder(experiment_id) / "event_id").exists():
                _, operations = self.load_state(experiment_id)
            else:
                self.state = SearcherState()
                self.state.experiment_id = experiment_id
                self.save_state(experiment_id, [])
            self.run_experiment(experiment_id, determined._session, operations)
        return experiment_id

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Locks the directory, because a second runner would decide from an old state."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.searcher_dir / "lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise BlockingIOError(
                f"another search runner is using {self.searcher_dir}: wait for it, or "
                f"choose another searcher_dir"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _folder(self, experiment_id: int) -> Path:
        return self.searcher_dir / f"exp_{experiment_id}"

    def load_state(self, experiment_id: int) -> tuple[int, list[Operation]]:
        """Loads the last complete state; returns the experiment's id and the event's operations.

        Raises ValueError if the state belongs to another experiment.
        """
        folder = self._folder(experiment_id)
        path = folder / f"event_{int((folder / 'event_id').read_text())}"
        self.state, found = self.search_method.load(path)
        if found != experiment_id:
            raise ValueError(f"{path} is the state of experiment {found}, not of {experiment_id}")
        saved = json.loads((path / "ops").read_text())
        return experiment_id, [SavedOperation(operation) for operation in saved]

    def save_state(self, experiment_id: int, operations: Sequence[Operation]) -> None:
        """Writes ``event_<n>`` and makes it the last state. The one before is kept, older ones go."""
        folder = self._folder(experiment_id)
        path = folder / f"event_{self.state.last_event_id}"
        shutil.rmtree(path, ignore_errors=True)  # of a runner that was killed here
        path.mkdir(parents=True)
        self.search_method.save(self.state, path, experiment_id=experiment_id)
        saved = [operation.to_json() for operation in operations]
        (path / "ops").write_text(json.dumps(saved))
        _write_whole(folder / "event_id", str(self.state.last_event_id))
        for number in self._kept(experiment_id)[:-2]:
            shutil.rmtree(folder / f"event_{number}", ignore_errors=True)

    def _kept(self, experiment_id: int) -> list[int]:
        paths = self._folder(experiment_id).glob("event_*/ops")
        return sorted(int(path.parent.name.removeprefix("event_")) for path in paths)

    def _forget_refused(self, experiment_id: int) -> None:
        earlier = [n for n in self._kept(experiment_id) if n < self.state.last_event_id]
        if earlier:
            _write_whole(self._folder(experiment_id) / "event_id", str(earlier[-1]))

    def _how_to_go_on(self) -> str:
        return f"run it again with searcher_dir={str(self.searcher_dir)!r} to continue the search"

    def _show_experiment_paused_msg(self) -> None:
        logger.warning(
            "experiment %s is paused; the search continues when the experiment is activated, in this "
            "process or in a later one with searcher_dir=%r",
            self.state.experiment_id,
            str(self.searcher_dir),
        )


def _write_whole(path: Path, text: str) -> None:
    """Writes in one step, so that a reader of ``path`` finds either the old text or the new one."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)
