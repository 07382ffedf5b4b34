"""A trial class that is missing or incomplete: another try would end the same way."""

from __future__ import annotations

import pytest

from determined.common.wire.last_words import NO_TRIAL_CLASS_CODE
from determined.common.wire.legs import ExitKind
from determined_tasks.entrypoint import command_words, hooked
from determined_tasks.exit_reason import as_it_said

TOLD = "last line of stderr: error: entrypoint model_def:Tril: model_def has no class Tril"
CLASS = command_words("model_def:Tril") or []
SCRIPT = ["python3", "train.py", "--trial", "1"]


@pytest.mark.parametrize(
    "command", [CLASS, CLASS[2:], ["bash", "-c", hooked("model_def:Tril", CLASS, ())]]
)
def test_a_missing_trial_class_is_not_tried_again(command: list[str]) -> None:
    found = as_it_said(NO_TRIAL_CLASS_CODE, TOLD, command)
    assert (found.kind, found.exit_code) == (ExitKind.FAILED_TO_START, NO_TRIAL_CLASS_CODE)
    assert found.reason == TOLD
    assert str(found) == "there is no restart: another try would end the same way"


@pytest.mark.parametrize(
    ("code", "told", "command"),
    [
        (NO_TRIAL_CLASS_CODE, TOLD, SCRIPT),
        (NO_TRIAL_CLASS_CODE, None, CLASS),
        (1, TOLD, CLASS),
        (0, TOLD, CLASS),
    ],
)
def test_other_ends_may_be_tried_again(code: int, told: str | None, command: list[str]) -> None:
    found = as_it_said(code, told, command)
    assert (found.kind, found.exit_code) == (ExitKind.EXITED, code)
    assert found.reason == (told if code else None)
