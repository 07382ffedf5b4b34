"""The ``quotas`` section: how much one user, or one address, may have at a time."""

from typing import Annotated

from pydantic import Field

from determined.common.wire import limits
from determined.expconf.base import WHOLE, Section

Count = Annotated[int, Field(ge=1, le=limits.INT32), WHOLE]
Bytes = Annotated[int, Field(ge=1, le=limits.INT64), WHOLE]
_GIB = 1024 * limits.MIB


class Quotas(Section):
    """The most of each kind that belongs to one user, administrators included; of connections, to one
    address.

    The defaults are what no user of a laptop meets: they are there for programs that have gone wild.
    """

    experiments: Count = Field(2_000, description="experiments that have not ended")
    trials: Count = Field(20_000, description="trials that have not ended, when more are to begin")
    tasks: Count = Field(
        1_000, description="commands, notebooks, shells and the like that have not ended"
    )
    stored_experiments: Count = Field(
        100_000, description="experiments in the database, ended ones too, when another is to begin"
    )
    stored_trials: Count = Field(
        2_000_000, description="trials in the database, ended ones too, when more are to begin"
    )
    stored_tasks: Count = Field(
        100_000,
        description="commands, notebooks, shells and the like in the database, ended ones too",
    )
    metric_bytes: Bytes = Field(
        20 * _GIB, description="reported metrics, when an experiment or trial is to begin"
    )
    model_definition_bytes: Bytes = Field(
        20 * _GIB, description="model definitions and context directories, as they are stored"
    )
    log_bytes: Bytes = Field(20 * _GIB, description="logs of trials and tasks")
    returned_file_bytes: Bytes = Field(
        20 * _GIB, description="files that came back from tasks and were not fetched yet"
    )
    notebook_file_bytes: Bytes = Field(
        200 * _GIB, description="files that notebooks keep in the checkpoint storage"
    )
    package_bytes: Bytes = Field(
        200 * _GIB,
        description="packages that experiments and tasks which have not ended have installed on agents",
    )
    access_tokens: Count = Field(100, description="access tokens that are good")
    sessions: Count = Field(
        500, description="logins that are alive; one more ends the one unused for the longest time"
    )
    connections: Count = Field(
        4_096,
        description="connections from one address (of IPv6: one /64), to the service and to tasks each; "
        "this machine and trusted proxies are not counted",
    )
