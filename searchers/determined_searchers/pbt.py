"""``pbt``: a population trains in rounds; after each round copies of the best trials replace the worst.

Population based training: Jaderberg et al., "Population Based Training of Neural Networks", 2017.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, Field

from determined_searchers.coordinates import Coordinates, Point
from determined_searchers.errors import SearcherError
from determined_searchers.events import ExitReason
from determined_searchers.explore import Explorer
from determined_searchers.method import SearchContext, SearchMethod
from determined_searchers.metrics import decode_metric, encode_metric
from determined_searchers.operations import Close, Create, Operation, ValidateAfter
from determined_searchers.sections import read_section


class PBTConfig(BaseModel):
    """Population based training: copies of the best trials replace the worst."""

    max_length: Any = Field(description="how long a member trains in all rounds together")
    population_size: int = Field(ge=2, description="trials that train side by side")
    num_rounds: int = Field(ge=1, description="rounds that max_length is cut into")
    truncate_fraction: float = Field(
        0.25, ge=0, le=0.5, description="share of the population that is replaced after a round"
    )
    resample_probability: float = Field(
        0.25, ge=0, le=1, description="chance that a hyperparameter is drawn again"
    )
    perturb_factor: float = Field(
        0.2, gt=0, lt=1, description="numbers are multiplied by 1 plus or minus this"
    )


@dataclass(slots=True)
class Member:
    """A place in the population, and the trial that has it now.

    ``metric``: at the end of this round, smaller is better; None until it is measured.
    """

    request_id: str
    point: Point
    metric: float | None = None
    gone: bool = False  # exited early; its place is filled when the round ends


class PopulationBasedTraining(SearchMethod):
    """All members train to the round's length and pause there. When the last one has reported, the worst
    ``truncate_fraction`` (at least one, unless it is 0) are closed. Each is replaced by a new trial that
    starts from the latest checkpoint of one of the best (as many), with its hyperparameters explored
    (:class:`Explorer`). All other members go on.

    A member that exited early counts among the worst. A member that called its hyperparameters invalid is
    replaced at once: in the first round by another sample, later by another copy of one of the best of the
    round before.
    """

    config_model = PBTConfig

    def __init__(self, context: SearchContext, config: PBTConfig) -> None:
        self.context = context
        self.config = config
        rounds = config.num_rounds
        self.lengths = [config.max_length * (done + 1) // rounds for done in range(rounds)]
        self.coordinates = Coordinates(context.space)
        self.explorer = Explorer(
            self.coordinates, context.stream, config.resample_probability, config.perturb_factor
        )
        self.round = 0  # equals num_rounds when the search is over
        self.members: list[Member] = []
        self.best: list[tuple[str, Point]] = []  # of the round before

    @classmethod
    def from_config(cls, context: SearchContext) -> Self:
        if context.max_length is None:
            raise SearcherError(
                "searcher.max_length: the pbt searcher needs this field, and max_time is not "
                "allowed, because the searcher tells its trials how long to train"
            )
        config = read_section(PBTConfig, context.section)
        if config.num_rounds > config.max_length:
            raise SearcherError(
                f"searcher.num_rounds: max_length {config.max_length} cannot be cut into "
                f"{config.num_rounds} rounds"
            )
        return cls(context, config)

    @property
    def invalid_limit(self) -> int | None:
        return 10 * self.config.population_size

    def initial_operations(self) -> list[Operation]:
        creates = [self.context.new_trial() for _ in range(self.config.population_size)]
        self.members = [self._member(create) for create in creates]
        return [op for create in creates for op in self._start(create)]

    def validation_completed(self, request_id: str, metric: Any, length: int) -> list[Operation]:
        for member in self._members_of(request_id):
            member.metric = metric
        return self._end_round()

    def trial_exited(self, request_id: str, reason: ExitReason) -> list[Operation]:
        operations: list[Operation] = []
        for member in self._members_of(request_id):
            if reason.invalid and not self._over:
                create = self._copy() if self.best else self.context.new_trial()
                self.members[self.members.index(member)] = self._member(create)
                operations += self._start(create)
            else:
                member.gone = True
        return operations + self._end_round()

    def trial_closed(self, request_id: str, exited: ExitReason | None) -> list[Operation]:
        return []

    def progress(self, open_trials: Mapping[str, float]) -> float:
        if self._over:
            return 1.0
        done = sum(self._share(member, open_trials) for member in self.members)
        return (self.round + done / self.config.population_size) / self.config.num_rounds

    def _share(self, member: Member, open_trials: Mapping[str, float]) -> float:
        """The share of this round's length that the member has trained."""
        if member.gone or member.metric is not None:
            return 1.0
        begin = self.lengths[self.round - 1] if self.round else 0
        trained = open_trials.get(member.request_id, 0.0) - begin
        return min(max(trained / (self.lengths[self.round] - begin), 0.0), 1.0)

    @property
    def _over(self) -> bool:
        return self.round == len(self.lengths)

    def _members_of(self, request_id: str) -> Iterator[Member]:
        """The member of this trial; None if another trial has its place."""
        return (member for member in self.members if member.request_id == request_id)

    def _member(self, create: Create) -> Member:
        return Member(create.request_id, self.coordinates.of(create.hparams))

    def _start(self, create: Create) -> list[Operation]:
        return [create, ValidateAfter(create.request_id, self.lengths[self.round])]

    def _copy(self) -> Create:
        """A new trial that starts from one of the best, with changed hyperparameters."""
        source, point = self.best[self.context.stream.below(len(self.best))]
        return self.context.new_trial(self.explorer.explore(point), source=source)

    def _end_round(self) -> list[Operation]:
        """No operations while some member has not reported. Then the next round, or the end."""
        if self._over or any(not (m.gone or m.metric is not None) for m in self.members):
            return []
        living = sorted((m for m in self.members if not m.gone), key=lambda m: m.metric or 0.0)
        self.round += 1
        if not living or self._over:
            self.round = len(self.lengths)
            return [Close(member.request_id) for member in living]
        worst = self._truncate(living)
        closed = [member for member in worst if not member.gone]
        operations: list[Operation] = [Close(member.request_id) for member in closed]
        for place, member in enumerate(self.members):
            if member in worst:
                create = self._copy()
                self.members[place] = self._member(create)
                operations += self._start(create)
            else:
                member.metric = None
                operations.append(ValidateAfter(member.request_id, self.lengths[self.round]))
        return operations

    def _truncate(self, living: list[Member]) -> list[Member]:
        """Note the best of ``living`` (best first). Returns the members to replace."""
        gone = [member for member in self.members if member.gone]
        fraction = self.config.truncate_fraction
        share = max(int(fraction * self.config.population_size), 1 if fraction else 0)
        best = living[: max(share, 1)]
        self.best = [(member.request_id, member.point) for member in best]
        losing = max(share - len(gone), 0)
        return gone + living[max(len(living) - losing, len(best)) :]

    def state(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "members": [
                [m.request_id, list(m.point), encode_metric(m.metric), m.gone] for m in self.members
            ],
            "best": [[request_id, list(point)] for request_id, point in self.best],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.round = state["round"]
        self.members = [
            Member(
                request_id,
                self.coordinates.load(point),
                None if metric is None else float(decode_metric(metric)),
                gone,
            )
            for request_id, point, metric, gone in state["members"]
        ]
        self.best = [
            (request_id, self.coordinates.load(point)) for request_id, point in state["best"]
        ]
