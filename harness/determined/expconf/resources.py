"""The resources of a trial: slots, pool, priority, memory, devices."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from determined.expconf import legacy
from determined.expconf.base import (
    WHOLE,
    AlsoAccepts,
    Natural,
    Section,
    Text,
    broken,
    by_shape,
    member,
)

#: As Determined's: a number, perhaps one space, perhaps a unit: B, or K to P with or without B or iB.
SIZE_PATTERN = r"^([0-9]*\.)?[0-9]+ ?([kmgtpKMGTP]([iI]?[bB])?|[bB])?$"


class Device(Section):
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


class Resources(Section):
    """The ``resources`` section."""

    slots_per_trial: Natural = Field(1, description="slots (GPUs, else CPU slots) per trial")
    max_slots: Natural | None = Field(None, description="slots that all trials together may use")
    weight: Annotated[float, Field(ge=0)] = Field(
        1.0, description="share of the slots, in pools that serve by fair shares"
    )
    priority: Annotated[int, Field(ge=1, le=99), WHOLE] | None = Field(
        None, description="a lower number is more important; default: the resource pool's"
    )
    resource_pool: str = Field("", description="resource pool; empty for the default one")
    shm_size: Size | None = Field(
        None, description="size of /dev/shm: bytes, or a size such as '4G'"
    )
    devices: list[
        Annotated[Device, BeforeValidator(legacy.device), AlsoAccepts({"type": "string"})]
    ] = Field([], description="devices, as mappings or 'host:container[:rwm]'")
    native_parallel: bool = Field(False, description="no longer used")
    is_single_node: bool | None = Field(
        None, description="whether all slots must be on one machine"
    )

    agent_label: Any = Field(None, exclude=True, description="no longer used")
    slots: Any = Field(None, exclude=True, description="no longer used")
