"""The rule by which a newly trained model is promoted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.promotion import CASES, promotions
from determined.common.promotion import (
    Guard,
    PromotionRule,
    RuleError,
    ScoreComparison,
    Scores,
    ScoresError,
    bootstrap,
    decide,
)
from determined.evaluation import compare

ACCURACY = PromotionRule("accuracy", min_gain=0.01)


def scored(**metrics: Scores) -> ScoreComparison:
    return ScoreComparison(True, metrics)


@pytest.mark.parametrize(
    ("rule", "found", "promote", "words"),
    [
        (
            ACCURACY,
            scored(accuracy=Scores(0.95, 0.9, 500, 0.02)),
            True,
            "above the least gain 0.01",
        ),
        (
            ACCURACY,
            scored(accuracy=Scores(0.95, 0.9, 500, 0.01)),
            False,
            "not above the least gain",
        ),
        (ACCURACY, scored(accuracy=Scores(0.95, 0.9)), False, "no score for each example"),
        (
            ACCURACY,
            scored(loss=Scores(0.1, 0.2)),
            False,
            "returned no 'accuracy' (it returned loss)",
        ),
        (ACCURACY, scored(accuracy=Scores(None, 0.9)), False, "the challenger's accuracy is not"),
        (ACCURACY, scored(accuracy=Scores(0.9, None)), False, "the champion's accuracy is not"),
        (
            ACCURACY,
            ScoreComparison(False, {"accuracy": Scores(0.2)}),
            True,
            "there is no champion yet",
        ),
        (
            ACCURACY,
            ScoreComparison(False, {"accuracy": Scores(None)}),
            False,
            "not a finite number",
        ),
        (
            PromotionRule("loss", True, confidence=None),
            scored(loss=Scores(0.1, 0.2)),
            True,
            "a gain of 0.1",
        ),
        (
            PromotionRule("loss", True, confidence=None),
            scored(loss=Scores(0.2, 0.2)),
            False,
            "not more than",
        ),
        (
            PromotionRule("a", confidence=None, guards=(Guard("loss", True, 0.05),)),
            scored(a=Scores(2, 1), loss=Scores(0.3, 0.2)),
            False,
            "the guard loss got worse by 0.1 (loss 0.2 -> 0.3), and may by 0.05",
        ),
        (
            PromotionRule("a", confidence=None, guards=(Guard("loss", True, 0.2),)),
            scored(a=Scores(2, 1), loss=Scores(0.3, 0.2)),
            True,
            "a 1 -> 2",
        ),
        (
            PromotionRule("a", confidence=None, guards=(Guard("b"),)),
            scored(a=Scores(2, 1)),
            False,
            "the guard b could not be compared",
        ),
    ],
)
def test_decisions(rule: PromotionRule, found: ScoreComparison, promote: bool, words: str) -> None:
    decision = decide(rule, found)
    assert decision.promote is promote
    assert words in decision.reason
    assert (
        decide(PromotionRule.read(rule.to_json()), ScoreComparison.read(found.to_json()))
        == decision
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "rule: expected a mapping"),
        ({}, "rule.metric: expected the name"),
        ({"metric": "a", "least": 1}, "rule: unknown field 'least'"),
        ({"metric": "a", "min_gain": -1}, "rule.min_gain: -1.0 is negative"),
        ({"metric": "a", "min_gain": math.nan}, "rule.min_gain: expected a finite number"),
        ({"metric": "a", "confidence": 1}, "rule.confidence: 1.0 is not above 0.5"),
        ({"metric": "a", "smaller_is_better": "no"}, "rule.smaller_is_better: expected true"),
        ({"metric": "a", "guards": [{"may_fall": 1}]}, "rule.guards[0].metric"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(given: Any, words: str) -> None:
    with pytest.raises(RuleError, match=words.replace("[", r"\[")):
        PromotionRule.read(given)


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"metrics": {"a": 1}},
        {"metrics": {"a": {"challenger": "x"}}},
        {"metrics": {"a": {"challenger": True}}},
        {"metrics": {"a": {"examples": -1}}},
        {"metrics": {str(n): {} for n in range(201)}},
    ],
)
def test_a_processs_reports_are_checked(given: Any) -> None:
    with pytest.raises(ScoresError):
        ScoreComparison.read(given)


def test_both_must_be_scored_on_the_same_examples() -> None:
    with pytest.raises(ValueError, match="the challenger has 3 scores and the champion 2"):
        compare.compare(
            compare.read({"a": [1, 2, 3]}),
            compare.read({"a": [1, 2]}),
            metric="a",
            confidence=0.9,
        )
    with pytest.raises(TypeError, match="must return a mapping"):
        compare.read([1, 2])


def test_the_quantile_is_student_s() -> None:
    assert bootstrap.student_quantile(0.95, 9) == pytest.approx(1.833113, abs=1e-4)
    assert bootstrap.student_quantile(0.99, 29) == pytest.approx(2.462021, abs=1e-4)


@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=lambda case: case.name)
def test_an_equal_challenger_is_rarely_promoted(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 5 %, and three standard deviations of 200 decisions; the benchmark has the thousand."""
    monkeypatch.setattr(bootstrap, "RESAMPLES", 1_000)
    assert promotions(case, 200, seed=1) <= 200 * 0.05 + 3 * math.sqrt(200 * 0.05 * 0.95)
