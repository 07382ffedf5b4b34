"""Which move of a pipeline comes next."""

from __future__ import annotations

import random

from determined.common.pipeline import PipelinePlan, PlannedStep
from determined_service.pipelines.machine import (
    CANCELED,
    COMPLETED,
    ENDED,
    FAILED,
    RUNNING,
    SKIPPED,
    WAITING,
    Await,
    End,
    Expand,
    Finish,
    StepState,
    Try,
    next_moves,
    to_submit,
    waited_for,
)


def plan(**needs: str) -> PipelinePlan:
    return PipelinePlan(
        "p", tuple(PlannedStep(name, {}, needs=tuple(of)) for name, of in needs.items())
    )


def standing(state: str, *tries: str) -> StepState:
    return StepState(state, tuple(Try(n, 1, one, one.lower(), n) for n, one in enumerate(tries)))


def test_steps_begin_when_all_that_they_need_has_completed() -> None:
    abc = plan(a="", b="a", c="ab")
    waiting = standing(WAITING)
    assert next_moves(abc, [waiting] * 3) == [Expand(0)]
    done = standing(COMPLETED)
    assert next_moves(abc, [done, waiting, waiting]) == [Expand(1)]
    running = standing(RUNNING, RUNNING, WAITING)
    assert next_moves(abc, [done, running, waiting]) == []
    assert [(step, one.item) for step, one in to_submit(abc, [done, running, waiting])] == [(1, 1)]
    assert [one.experiment_id for one in waited_for([done, running, waiting])] == [0]


def test_no_more_items_run_at_once_than_the_step_allows() -> None:
    only = PipelinePlan("p", (PlannedStep("a", {}, for_each=[1, 2, 3, 4], max_concurrent=2),))

    def submitted(*tries: str) -> list[int]:
        return [one.item for _, one in to_submit(only, [standing(RUNNING, *tries)])]

    assert submitted(WAITING, WAITING, WAITING, WAITING) == [0, 1]
    assert submitted(RUNNING, WAITING, WAITING, WAITING) == [1]
    assert submitted(FAILED, RUNNING, RUNNING, WAITING) == []
    assert submitted(FAILED, COMPLETED, RUNNING, WAITING) == [3]


def test_a_step_fails_when_all_its_experiments_have_ended() -> None:
    only = plan(a="")
    assert next_moves(only, [standing(RUNNING, FAILED, RUNNING)]) == []
    (move,) = next_moves(only, [standing(RUNNING, FAILED, COMPLETED)])
    assert move == Finish(0, FAILED, "1 of 2 experiments failed; the first: failed")
    assert next_moves(only, [standing(RUNNING, COMPLETED)]) == [Finish(0, COMPLETED, "completed")]


def test_dependent_steps_are_skipped_and_the_rest_goes_on() -> None:
    both = plan(a="", b="a", c="", d="c")
    now = [standing(FAILED), standing(WAITING), standing(COMPLETED), standing(WAITING)]
    assert next_moves(both, now) == [Finish(1, SKIPPED, "step a failed"), Expand(3)]
    now = [standing(FAILED), standing(SKIPPED), standing(COMPLETED), standing(COMPLETED)]
    assert next_moves(both, now) == [End(FAILED, "step a failed, 1 skipped")]
    # One whose condition was false is not a failure.
    now = [standing(one) for one in (COMPLETED, SKIPPED, COMPLETED, COMPLETED)]
    assert next_moves(both, now) == [End(COMPLETED, "3 of 4 steps completed, 1 skipped")]


def test_a_pipeline_waits_for_people_once_nothing_else_is_left() -> None:
    asked = PipelinePlan(
        "p",
        (
            PlannedStep("a", {}),
            PlannedStep("b", {}, kind="approval"),
            PlannedStep("c", {}, needs=("b",)),
        ),
    )
    asks, waiting = standing(RUNNING, RUNNING), standing(WAITING)
    assert next_moves(asked, [standing(RUNNING, RUNNING), asks, waiting]) == []
    assert next_moves(asked, [standing(COMPLETED), standing(RUNNING, WAITING), waiting]) == []
    (move,) = next_moves(asked, [standing(COMPLETED), asks, waiting])
    assert move == Await("waits for an approval: b")
    assert next_moves(asked, [standing(COMPLETED), standing(RUNNING, COMPLETED), waiting]) == [
        Finish(1, COMPLETED, "completed")
    ]


def test_every_pipeline_comes_to_an_end() -> None:
    """For any results of the experiments, in any order."""
    for seed in range(200):
        draw = random.Random(seed)
        names = "abcdef"
        needs = {
            name: "".join(one for one in names[:place] if draw.random() < 0.4)
            for place, name in enumerate(names)
        }
        asked = plan(**needs)
        now = [standing(WAITING)] * len(names)
        for _ in range(100):
            moves = next_moves(asked, now)
            if any(isinstance(move, End) for move in moves):
                break
            for move in moves:
                if isinstance(move, Expand):
                    now[move.step] = standing(RUNNING, *[WAITING] * draw.randint(1, 3))
                elif isinstance(move, Finish):
                    now[move.step] = StepState(move.state)
            if not moves:
                place, one = draw.choice(to_submit(asked, now))
                tries = list(now[place].tries)
                tries[one.item] = Try(one.item, 1, draw.choice((COMPLETED, COMPLETED, FAILED)))
                now[place] = StepState(RUNNING, tuple(tries))
        assert {step.state for step in now} <= set(ENDED) - {CANCELED}
        states = {name: step.state for name, step in zip(names, now, strict=True)}
        for name, of in needs.items():
            lacks = any(states[one] != COMPLETED for one in of)
            assert (states[name] == SKIPPED) == lacks
