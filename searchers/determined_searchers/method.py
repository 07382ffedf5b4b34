"""The contract of a search method. :class:`SearchMethod` is its whole documentation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from determined_searchers.events import ExitReason
from determined_searchers.operations import Close, Create, Operation, ValidateAfter
from determined_searchers.settings import Form
from determined_searchers.space import Space
from determined_searchers.stream import RandomStream


@dataclass(frozen=True)
class SearchContext:
    """A method's context: its configuration, the space, and the search's one random stream.

    Attributes:
        section: ``config["searcher"]``.
        space: the hyperparameters.
        stream: shared by all parts of the search (also by the sub-searches of a tournament); its
            state is saved by the searcher, not by the method.
        form: whether operations or reports decide how long trials train. max_length: total length of a full
        trial in the operations form, else None. suggest: gives the hyperparameters of the next trial; None:
        samples of the space. With it a model-based search chooses the trials of another search's brackets
        (``dataclasses.replace(context, suggest=...)``).
    """

    section: Mapping[str, Any]
    space: Space
    stream: RandomStream
    form: Form
    max_length: int | None
    suggest: Callable[[], dict[str, Any]] | None = None

    def new_trial(self, hparams: dict[str, Any] | None = None, source: str | None = None) -> Create:
        """A Create with suggested (or the given) hyperparameters.

        ``source``: request id of the trial whose latest checkpoint it starts from. Draws, in this
        order: the hyperparameters unless given, the request id, the trial seed.
        """
        if hparams is None:
            hparams = self.suggest() if self.suggest else self.space.sample(self.stream)
        return Create(self.stream.request_id(), hparams, self.stream.trial_seed(), source=source)

    def full_length(self, create: Create) -> list[Operation]:
        """``create``, and the operations that make the trial train to the end and finish, in either form."""
        if self.max_length is None:
            return [create]
        trial = create.request_id
        return [create, ValidateAfter(trial, self.max_length), Close(trial)]


@dataclass(frozen=True)
class BracketStanding:
    """A bracket of rungs, for display.

    Attributes:
        lengths: at which trials are compared, from the bottom rung up.
        measured: per rung, the request ids of the trials measured there.
        max_trials, max_concurrent: the bracket's share of both.
    """

    lengths: tuple[int, ...]
    measured: tuple[tuple[str, ...], ...]
    max_trials: int
    max_concurrent: int


class SearchMethod(ABC):
    """Decides which trials there are and how far each one trains. Pure: no I/O, no clock, no
    random numbers but the context's stream.

    **Who owns what.** The :class:`~determined_searchers.Searcher` around the method owns identity
    (which trials were asked for, which are over), the random stream, progress of single trials,
    and the end of the search. The method owns its decisions: counters, rungs, what is left to try.
    It never keeps a clock, a file or a reference to another method's state.

    **Order of calls.** ``from_config`` once. Then either ``initial_operations`` once, or ``load``
    once with what ``state`` gave. Then, for each trial that a Create asked for:

    1. ``trial_created``, once.
    2. *Operations form*: ``validation_completed`` once per ValidateAfter, never without one.
       *Reports form*: ``trial_reported`` any number of times, ``time`` rising (unless it is
       None), with no promise about spacing; none after a Stop.
    3. at most once ``trial_exited``; nothing of 2 follows it.
    4. ``trial_closed``, once, last: after the trial finished what it was asked for (Close), was
       stopped (Stop), or exited.

    Between trials any order is possible: calls arrive in the order in which things happened. A
    trial in the operations form with nothing to do and no Close is *paused*: it holds no slot, and
    a later ValidateAfter makes it go on from its checkpoint.

    **What is returned** by each of these is a list of operations, carried out in order, all or
    none, together with saving the state. ValidateAfter, Close and Stop name trials that are not
    closed. Lengths are totals since the trial began and never fall. In the operations form use
    ValidateAfter and Close, in the reports form Create and Stop only: a trial there runs until
    its code ends. After a Shutdown no method is called again.

    **What may be called twice.** None of the above: the searcher swallows repeated events. ``state``
    and ``progress`` may be called at any time and change nothing.

    **After a crash** a new method is built by ``from_config`` from the same configuration and
    ``load`` gets the last saved state, with events since then delivered again. It must then give
    the same answers as the lost one would have, and ``state`` must give back the very same JSON.
    So: everything that influences a later answer is in ``state``, dynamic collections as lists
    (storage may reorder the keys of an object), floats restored with ``float`` (it may turn 1.0
    into 1).

    **The end.** When all trials asked for are closed, the searcher shuts the search down: failed
    if every trial errored, canceled if every trial was canceled by the user, else completed. A
    method that is not done must therefore ask for its next trial in ``trial_closed`` at the latest.
    Methods with ``ends_itself`` return a Shutdown instead.

    **Errors.** Wrong configuration: ``from_config`` raises SearcherError with the field's path. A
    search that cannot go on: any method raises SearcherError, and the experiment ends in error.
    """

    ends_itself: ClassVar[bool] = False
    """True: only the method's own Shutdown ends the search."""

    config_model: ClassVar[type | None] = None
    """The pydantic model of a plug-in's ``searcher`` section (without ``name``, ``metric`` and
    ``smaller_is_better``, which every section has); None: any further fields are allowed."""

    raw_metrics: ClassVar[bool] = False
    """False: metrics are floats, smaller is better (turned if need be), with NaN and missing ones
    replaced by the largest float, so never NaN. True: metrics as reported, any JSON value."""

    needs_metric: ClassVar[bool] = False
    """True: the method compares trials by the reports of the searcher's metric, so that in the reports form
    the search fails when a trial never reports it. False: it can do without."""

    @classmethod
    @abstractmethod
    def from_config(cls, context: SearchContext) -> SearchMethod:
        """The method that ``context.section`` describes. Draws no random numbers."""

    @property
    def invalid_limit(self) -> int | None:
        """The search fails after this many trials in a row that called their hyperparameters invalid. None:
        invalid trials are not replaced, so the search ends anyway.
        """
        return None

    @abstractmethod
    def initial_operations(self) -> list[Operation]:
        """The first trials."""

    def trial_created(self, request_id: str) -> list[Operation]:
        """Handle that the trial exists."""
        return []

    def validation_completed(self, request_id: str, metric: Any, length: int) -> list[Operation]:
        """Handle that the trial has done its ValidateAfter. Two in a row may have the same length (rungs
        that coincide): use the trial's position, not ``length``.
        """
        return []

    def trial_reported(
        self, request_id: str, time: float | None, metric: Any, step: int | None
    ) -> list[Operation]:
        """Handle that the trial reported a validation at ``time`` of the time metric (None: not reported)."""
        return []

    def trial_progress(self, request_id: str, progress: float) -> list[Operation]:
        """Handle that the trial has progressed; for methods that pass it on (progress needs no answer)."""
        return []

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        """Handle that the trial ended early. A replacement may be created here or in ``trial_closed``."""
        return []

    @abstractmethod
    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        """Handle that the trial is over. ``exited`` is the reason given to ``trial_exited``, None without
        one.
        """

    @abstractmethod
    def progress(self, open_trials: Mapping[str, float]) -> float:
        """The finished share of the search, 0..1.

        ``open_trials``: latest progress (length units or fraction, by form) of each trial asked
        for that is neither closed nor called invalid.
        """

    def standings(self) -> list[BracketStanding]:
        """For previews and pictures: the brackets of rungs; none where nothing is compared."""
        return []

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The state that ``load`` needs, as JSON. Keep it small: it is saved with every answer."""

    @abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Return to the position at which ``state`` was taken. Draws no random numbers."""
