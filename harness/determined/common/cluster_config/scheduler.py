"""The ``scheduler`` section: who gets slots first, and on which agent."""

from typing import Annotated, Literal

from pydantic import Field

from determined.expconf.base import WHOLE, Section

SchedulerType = Literal["priority", "fair_share", "round_robin", "first_in_first_out"]

#: The settings of one type only, which the others refuse.
OF_PRIORITY = ("preemption", "default_priority")
DEFAULT_PRIORITY = 42
#: Where the resource manager is of the type kubernetes, where a higher number is more important.
KUBERNETES_PRIORITY = 50


class SchedulerConfig(Section):
    """The order in which the requests of a resource pool are served."""

    type: SchedulerType = Field("priority", description="who is served first")
    fitting_policy: Literal["best", "worst"] = Field(
        "best", description="the agent of the fewest free slots on which it fits, or of the most"
    )
    allow_heterogeneous_fits: bool = Field(
        False, description="whether a trial may spread over agents of different sizes"
    )
    preemption: bool = Field(
        False, description="whether the more important may stop the less important"
    )
    default_priority: Annotated[int, Field(ge=1, le=99), WHOLE] = Field(
        DEFAULT_PRIORITY,
        description="priority of what sets none; a lower number is more important (on Kubernetes a higher"
        " one, and the default is 50)",
    )
