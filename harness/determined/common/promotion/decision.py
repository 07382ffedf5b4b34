"""Rule and scores to a decision: :func:`decide`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from determined.common.promotion.rule import Guard, PromotionRule
from determined.common.promotion.scores import ScoreComparison, Scores


@dataclass(frozen=True, slots=True)
class PromotionDecision:
    """``reason``: one sentence for people, with the numbers."""

    promote: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {"promote": self.promote, "reason": self.reason}


def decide(rule: PromotionRule, comparison: ScoreComparison) -> PromotionDecision:
    """Whether the challenger becomes the champion. Whatever cannot be said for sure keeps the champion."""
    scores = comparison.metrics.get(rule.metric)
    if scores is None:
        named = ", ".join(sorted(comparison.metrics)) or "nothing"
        return _kept(f"the evaluation returned no {rule.metric!r} (it returned {named})")
    if scores.challenger is None:
        return _kept(f"the challenger's {rule.metric} is not a finite number")
    if not comparison.had_champion:
        return PromotionDecision(
            True, f"there is no champion yet: {rule.metric} {_shown(scores.challenger)}"
        )
    gain = scores.gain(rule.smaller_is_better)
    if gain is None:
        return _kept(f"the champion's {rule.metric} is not a finite number, so nothing can be said")
    for guard in rule.guards:
        fallen = _fallen(guard, comparison)
        if fallen is not None:
            return _kept(fallen)
    if rule.confidence is None:
        return _by_means(rule, scores, gain)
    return _by_bound(rule, scores, gain, rule.confidence)


def _by_means(rule: PromotionRule, scores: Scores, gain: float) -> PromotionDecision:
    better = gain > rule.min_gain
    versus = f"{_change(rule.metric, scores)}, a gain of {_shown(gain)}"
    needed = f"the least gain {_shown(rule.min_gain)}"
    return PromotionDecision(better, f"{versus}, {'more' if better else 'not more'} than {needed}")


def _by_bound(
    rule: PromotionRule, scores: Scores, gain: float, confidence: float
) -> PromotionDecision:
    if scores.gain_low is None:
        return _kept(
            f"{rule.metric} has no score for each example, which a confidence of {confidence:.4g} needs: "
            "return a list of scores, or set rule.confidence to null"
        )
    better = scores.gain_low > rule.min_gain
    return PromotionDecision(
        better,
        f"{_change(rule.metric, scores)} on {scores.examples} examples: with a confidence of "
        f"{confidence:.4g} the gain is more than {_shown(scores.gain_low)}, "
        f"{'above' if better else 'not above'} the least gain {_shown(rule.min_gain)}",
    )


def _fallen(guard: Guard, comparison: ScoreComparison) -> str | None:
    """Why the guard refuses; None: it does not."""
    scores = comparison.metrics.get(guard.metric)
    gain = None if scores is None else scores.gain(guard.smaller_is_better)
    if scores is None or gain is None:
        return f"the guard {guard.metric} could not be compared: the evaluation returned no finite number"
    if -gain <= guard.may_fall:
        return None
    return (
        f"the guard {guard.metric} got worse by {_shown(-gain)} ({_change(guard.metric, scores)}), "
        f"and may by {_shown(guard.may_fall)}"
    )


def _kept(reason: str) -> PromotionDecision:
    return PromotionDecision(False, reason)


def _change(name: str, scores: Scores) -> str:
    assert scores.champion is not None and scores.challenger is not None
    return f"{name} {_shown(scores.champion)} -> {_shown(scores.challenger)}"


def _shown(value: float) -> str:
    return f"{value:.4g}"
