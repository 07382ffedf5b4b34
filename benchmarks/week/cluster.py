"""A cluster in virtual time, which a scheduler of the service decides: :func:`replay`."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.week.measures import Measures
from benchmarks.week.trace import AGENTS, SLOTS, Experiment, Trial
from determined_service.scheduling.scheduler import Decision, Scheduler
from determined_service.scheduling.snapshot import AgentInfo, Occupant, Request, Snapshot

POOL = "default"
SAVE_S, RESTORE_S = 20.0, 40.0
"""What a preempted trial takes to store its checkpoint, and a trial that resumes to be where it was."""


@dataclass(slots=True)
class _Job:
    """A trial that waits or runs. ``left``: seconds of work; ``begun``: when it goes on; None: it waits."""

    experiment: Experiment
    trial: Trial
    requested: float
    left: float
    waits_since: float
    was_placed: bool = False
    agent: str = ""
    slot_ids: tuple[int, ...] = ()
    begun: float | None = None
    stopping_for: str | None = None
    epoch: int = 0
    """An end that was foreseen before it was stopped is not its end."""


@dataclass(slots=True)
class _Open:
    experiment: Experiment
    left: deque[Trial]


@dataclass(slots=True)
class _Cluster:
    scheduler: Scheduler
    measures: Measures
    now: float = 0.0
    events: list[tuple[float, int, str, object]] = field(default_factory=list)
    waiting: dict[str, _Job] = field(default_factory=dict)
    running: dict[str, _Job] = field(default_factory=dict)
    used: dict[str, set[int]] = field(
        default_factory=lambda: {f"agent-{n}": set() for n in range(AGENTS)}
    )
    open: dict[int, _Open] = field(default_factory=dict)
    number: itertools.count[int] = field(default_factory=itertools.count)

    def at(self, moment: float, what: str, subject: object) -> None:
        heapq.heappush(self.events, (moment, next(self.number), what, subject))

    def submit(self, experiment: Experiment) -> None:
        found = self.open[experiment.id] = _Open(experiment, deque(experiment.trials))
        for _ in range(experiment.at_once):
            self.ask(found)

    def ask(self, found: _Open) -> None:
        """The experiment's next trial waits, if there is one."""
        if found.left:
            trial = found.left.popleft()
            self.waiting[trial.id] = _Job(
                found.experiment, trial, self.now, trial.duration, self.now
            )

    def end(self, job: _Job) -> None:
        self.free(job)
        self.measures.ended(job.experiment, self.now)
        self.ask(self.open[job.experiment.id])

    def free(self, job: _Job) -> None:
        del self.running[job.trial.id]
        self.used[job.agent] -= set(job.slot_ids)

    def stopped(self, job: _Job) -> None:
        """The preempted trial has stored its checkpoint; it waits in its old place."""
        self.free(job)
        job.begun, job.stopping_for, job.waits_since = None, None, self.now
        self.waiting[job.trial.id] = job

    def place(self, decision: Decision) -> None:
        for one in decision.placements:
            job = self.waiting.pop(one.id)
            taken = self.used[one.agent_id]
            assert not taken & set(one.slot_ids)
            taken |= set(one.slot_ids)
            self.measures.placed(
                job.experiment, self.now - job.waits_since, first=not job.was_placed
            )
            job.agent, job.slot_ids = one.agent_id, one.slot_ids
            job.begun = self.now
            if job.was_placed:
                job.begun += RESTORE_S
                self.at(job.begun, "works", job)
            job.was_placed = True
            job.epoch += 1
            self.running[one.id] = job
            self.at(job.begun + job.left, "end", (job, job.epoch))
        for stop in decision.preemptions:
            job = self.running[stop.id]
            assert job.begun is not None
            self.measures.preempted(job.experiment)
            job.left -= max(0.0, self.now - job.begun)
            job.stopping_for = stop.request_id
            job.epoch += 1
            self.at(self.now + SAVE_S, "stopped", job)

    def snapshot(self) -> Snapshot:
        agents = tuple(
            AgentInfo(name, POOL, tuple(range(SLOTS)), frozenset(used))
            for name, used in self.used.items()
        )
        requests = tuple(
            _request(job)
            for job in sorted(self.waiting.values(), key=lambda job: (job.requested, job.trial.id))
        )
        return Snapshot(requests, agents, {}, tuple(map(_running, self.running.values())))

    def useful(self) -> int:
        return sum(
            job.experiment.slots
            for job in self.running.values()
            if job.stopping_for is None and job.begun is not None and job.begun <= self.now
        )


def _request(job: _Job) -> Request:
    one = job.experiment
    return Request(
        job.trial.id,
        POOL,
        one.slots,
        one.id,
        priority=one.priority,
        weight=one.weight,
        position=one.submitted,
        requested=job.requested,
    )


def _running(job: _Job) -> Occupant:
    one = job.experiment
    return Occupant(
        job.trial.id,
        job.agent,
        job.slot_ids,
        one.id,
        priority=one.priority,
        weight=one.weight,
        position=one.submitted,
        requested=job.requested,
        stopping=job.stopping_for is not None,
        stopping_for=job.stopping_for,
    )


def replay(scheduler: Scheduler, experiments: Sequence[Experiment]) -> Measures:
    """The whole trace, until the last trial has ended. The scheduler decides at every change, as in the
    service; deciding takes no virtual time."""
    cluster = _Cluster(scheduler, Measures())
    for experiment in experiments:
        cluster.at(experiment.submitted, "submit", experiment)
    while cluster.events:
        moment = cluster.events[0][0]
        cluster.measures.passed(
            cluster.now,
            moment,
            cluster.useful(),
            [job.experiment for job in cluster.running.values()],
            [job.experiment for job in cluster.waiting.values()],
        )
        cluster.now = moment
        while cluster.events and cluster.events[0][0] <= moment:
            _happen(cluster, *heapq.heappop(cluster.events)[2:])
        cluster.place(cluster.measures.timed(scheduler.decide, cluster.snapshot()))
    assert not cluster.waiting
    assert not cluster.running
    return cluster.measures


def _happen(cluster: _Cluster, what: str, subject: object) -> None:
    """``works``: a trial begins its work; nothing but the measures heeds it."""
    if what == "submit":
        assert isinstance(subject, Experiment)
        cluster.submit(subject)
    elif what == "stopped":
        assert isinstance(subject, _Job)
        cluster.stopped(subject)
    elif what == "end":
        assert isinstance(subject, tuple)
        job, epoch = subject
        if job.epoch == epoch:
            cluster.end(job)
