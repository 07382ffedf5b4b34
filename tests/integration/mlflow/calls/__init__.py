"""Every public method of MLflow's client, and every function of ``mlflow``, called once: the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).parents[3] / "fixtures" / "mlflow_answers.json"
"""What MLflow's own store answered."""


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """The calls whose answers are not equal. Of two refusals with one code the words may differ."""
    return [
        call
        for call, answer in ours.items()
        if without_words(answer) != without_words(theirs.get(call, "not called"))
    ]


def without_words(answer: Any) -> Any:
    """The answer; of a refusal its code alone."""
    if isinstance(answer, dict) and "refused" in answer:
        return {"refused": answer["refused"]}
    return answer
