"""The resources of a trial: slots, pool, agents, priority, memory, devices."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from determined.common.wire import limits
from determined.expconf import legacy
from determined.expconf.base import (
    WHOLE,
    AlsoAccepts,
    Count,
    Natural,
    Section,
    Text,
    broken,
    by_shape,
    member,
)

#: As Determined's: a number, perhaps one space, perhaps a unit: B, or K to P with or without B or iB.
SIZE_PATTERN = r"^([0-9]*\.)?[0-9]+ ?([kmgtpKMGTP]([iI]?[bB])?|[bB])?$"


class DeviceMapping(Section):
    """A device file of the machine that is available in the container."""

    host_path: Text = Field(description="device on the machine")
    container_path: Text = Field(description="device in the container")
    mode: Annotated[str, Field(pattern=r"^[rwm]+$")] = Field("mrw", description="rights: r, w, m")

    @model_validator(mode="before")
    @classmethod
    def _not_text(cls, data: Any) -> Any:
        if isinstance(data, str):
            raise broken(f"expected 'host:container[:rwm]', found {data!r}", "host:container[:rwm]")
        return data


Size = Annotated[
    Annotated[Natural, member("bytes")]
    | Annotated[str, member("text"), Field(pattern=SIZE_PATTERN)],
    by_shape("a number of bytes or a size such as '4G'", bytes=int, text=str),
    WHOLE,
]


_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
#: Also what `det agent start --label` takes.
LABEL_KEY = r"^[A-Za-z0-9][A-Za-z0-9_./-]*$"
LABEL_VALUE = r"^[^\x00-\x1f\x7f,=]*$"
LabelKey = Annotated[str, Field(pattern=LABEL_KEY, max_length=limits.AGENT_LABEL_CHARS)]
LabelValue = Annotated[
    str, Field(min_length=1, pattern=LABEL_VALUE, max_length=limits.AGENT_LABEL_CHARS)
]


class PlacementSection(Section):
    """The ``resources.placement`` section: the agents on which trials may run."""

    agents: Annotated[list[Text], Field(max_length=limits.PLACEMENT_AGENTS)] = Field(
        [], description="names of agents, of which a trial gets one; empty: any"
    )
    labels: Annotated[
        dict[
            LabelKey,
            Annotated[list[LabelValue], Field(min_length=1, max_length=limits.AGENT_LABELS)],
        ],
        Field(max_length=limits.AGENT_LABELS),
        BeforeValidator(legacy.label_values),
        AlsoAccepts({"type": "object", "additionalProperties": _TEXT}),
    ] = Field({}, description="labels of `det agent start --label`: a value, or several, for each")


class Fallback(Section):
    """The ``fallback`` section, of ``resources`` or a resource pool: where trials go that get no slots."""

    pools: Annotated[list[Text], Field(min_length=1, max_length=limits.FALLBACK_POOLS)] = Field(
        description="resource pools, in the order in which they are tried"
    )
    after_seconds: Count = Field(
        300, description="how long all trials wait before they go to the next pool"
    )


FallbackField = Annotated[
    Fallback, BeforeValidator(legacy.fallback), AlsoAccepts({"anyOf": [_TEXT, _TEXTS]})
]


class Resources(Section):
    """The ``resources`` section."""

    slots_per_trial: Count = Field(1, description="slots (GPUs, else CPU slots) per trial")
    max_slots: Count | None = Field(None, description="slots that all trials together may use")
    weight: Annotated[float, Field(ge=0)] = Field(
        1.0, description="share of the slots, in pools that serve by fair shares"
    )
    priority: Annotated[int, Field(ge=1, le=99), WHOLE] | None = Field(
        None,
        description="a lower number is more important, on Kubernetes a higher one; default: the pool's",
    )
    resource_pool: str = Field("", description="resource pool; empty for the default one")
    fallback: FallbackField | None = Field(
        None, description="pools to go to when this one has no slots; default: the resource pool's"
    )
    placement: PlacementSection | None = Field(
        None, description="which agents of the pool may run the trials"
    )
    shm_size: Size | None = Field(
        None, description="size of /dev/shm: bytes, or a size such as '4G'"
    )
    devices: list[
        Annotated[DeviceMapping, BeforeValidator(legacy.device), AlsoAccepts({"type": "string"})]
    ] = Field([], description="devices, as mappings or 'host:container[:rwm]'")
    native_parallel: bool = Field(False, description="no longer used")
    is_single_node: bool | None = Field(
        None, description="whether all slots must be on one machine"
    )

    agent_label: Any = Field(None, exclude=True, description="no longer used")
    slots: Any = Field(None, exclude=True, description="no longer used")
