"""Actions on log lines, and how long logs are kept."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from determined.expconf import legacy
from determined.expconf.base import WHOLE, AlsoAccepts, Section

ACTIONS = ("cancel_retries", "exclude_node")

#: Every experiment has these policies, except those whose names it gives to its own.
BUILT_IN: tuple[dict[str, Any], ...] = (
    {"name": "CUDA OOM", "pattern": ".*CUDA out of memory.*", "action": None},
    {"name": "ECC Error", "pattern": ".*uncorrectable ECC error encountered.*", "action": None},
)


class LogPolicy(Section):
    """A regular expression for log lines, and the action on a match."""

    name: str | None = Field(None, description="shown as the trial's label on a match")
    pattern: str | None = Field(None, description="regular expression; null switches it off")
    action: Annotated[
        Literal["cancel_retries", "exclude_node"] | None,
        BeforeValidator(legacy.log_action),
        AlsoAccepts(
            {
                "type": "object",
                "properties": {"type": {"enum": list(ACTIONS)}},
                "required": ["type"],
                "additionalProperties": False,
            }
        ),
    ] = Field(None, description="action on a match")


class RetentionPolicy(Section):
    """The ``retention_policy`` section."""

    log_retention_days: Annotated[int, Field(ge=-1, le=32767), WHOLE] = Field(
        description="days for which trial logs are kept; -1 = forever"
    )
