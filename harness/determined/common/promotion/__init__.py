"""Whether a newly trained model (the challenger) takes the place of the one in use (the champion).

Pure: no clock, no network, no global random numbers.

* :mod:`.rule`: what the user wants, read and checked
* :mod:`.scores`: what the evaluation found
* :mod:`.bootstrap`: how sure a gain is (numpy; imported by the evaluation alone)
* :func:`.decide`: rule and scores to a decision, with its reason in words
"""

from determined.common.promotion.decision import PromotionDecision, decide
from determined.common.promotion.rule import Guard, PromotionRule, RuleError
from determined.common.promotion.scores import ScoreComparison, Scores, ScoresError

__all__ = [
    "Guard",
    "PromotionDecision",
    "PromotionRule",
    "RuleError",
    "ScoreComparison",
    "Scores",
    "ScoresError",
    "decide",
]
