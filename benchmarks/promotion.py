"""How often the rule of promotion promotes a challenger that is no better, on data where the truth is known.

    python -m benchmarks.promotion    # 1,000 decisions a row: the table of docs/inside/workflows.md

Each row draws the scores of champion and challenger on the same examples, with a known true gain, and asks
the rule. Where the true gain is not above the least gain, each promotion is a false one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from determined.common.promotion import PromotionRule, decide
from determined.evaluation import compare

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def accuracies(champion: float, challenger: float, agree: float) -> Draw:
    """Scores of 0 and 1. ``agree``: the share of examples on which both are right or wrong together."""

    def draw(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        shared = random.random(count)
        alone = random.random(count)
        together = random.random(count) < agree
        return shared < champion, np.where(together, shared, alone) < challenger

    return draw


def losses(gain: float) -> Draw:
    """Losses with a long tail; the challenger's are smaller by ``gain`` on average."""

    def draw(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        common = random.lognormal(0.0, 1.0, count)
        champion = common * random.lognormal(0.0, 0.5, count)
        challenger = common * random.lognormal(0.0, 0.5, count)
        return -champion, -(challenger - gain)

    return draw


def rarely_much_worse(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The challenger is mostly a little better and rarely much worse, and no better on average."""
    worse = random.exponential(1.0, count) - 1.0
    common = random.random(count)
    return common, common - worse


@dataclass(frozen=True)
class Case:
    """``better``: the true gain is above the least gain of the rule."""

    name: str
    draw: Draw
    examples: int
    confidence: float = 0.95
    min_gain: float = 0.0
    better: bool = False


CASES = (
    Case("equal accuracy 0.9", accuracies(0.9, 0.9, 0.8), 100),
    Case("equal accuracy 0.9", accuracies(0.9, 0.9, 0.8), 1_000),
    Case("equal accuracy 0.9", accuracies(0.9, 0.9, 0.8), 1_000, confidence=0.99),
    Case("equal accuracy 0.6, independent", accuracies(0.6, 0.6, 0.0), 50),
    Case("0.02 better, least gain 0.02", accuracies(0.9, 0.92, 0.8), 1_000, min_gain=0.02),
    Case("equal losses, long tail", losses(0.0), 100),
    Case("equal losses, long tail", losses(0.0), 300),
    Case("mostly a little better, rarely much worse", rarely_much_worse, 100),
    Case("0.02 worse accuracy", accuracies(0.9, 0.88, 0.8), 1_000),
    Case("0.02 better accuracy", accuracies(0.9, 0.92, 0.8), 1_000, better=True),
    Case("0.05 better accuracy", accuracies(0.9, 0.95, 0.8), 1_000, better=True),
)


def promotions(case: Case, decisions: int, seed: int) -> int:
    """How many of so many decisions promote."""
    random = np.random.default_rng(seed)
    rule = PromotionRule("score", min_gain=case.min_gain, confidence=case.confidence)
    count = 0
    for number in range(decisions):
        champion, challenger = case.draw(random, case.examples)
        comparison = compare.compare(
            compare.read({"score": challenger.astype(float)}),
            compare.read({"score": champion.astype(float)}),
            metric="score",
            confidence=case.confidence,
            seed=number,
        )
        count += decide(rule, comparison).promote
    return count


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| truth | examples | confidence | stated rate | promoted |")
    print("|---|---|---|---|---|")
    for case in CASES:
        found = promotions(case, given.decisions, given.seed)
        stated = "" if case.better else f"at most {1 - case.confidence:.0%}"
        share = f"{found / given.decisions:.1%}"
        print(
            f"| {case.name} | {case.examples} | {case.confidence} | {stated} | {share} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
