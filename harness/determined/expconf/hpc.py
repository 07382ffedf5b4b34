"""Options for HPC schedulers."""

from pydantic import Field

from determined.expconf.base import Positive, Section


class Slurm(Section):
    """The ``slurm`` section."""

    slots_per_node: Positive | None = Field(None, description="slots on each machine")
    gpu_type: str | None = Field(None, description="kind of GPU to ask for")
    sbatch_args: list[str] = Field([], description="further arguments of sbatch")


class Pbs(Section):
    """The ``pbs`` section."""

    slots_per_node: Positive | None = Field(None, description="slots on each machine")
    pbsbatch_args: list[str] = Field([], description="further arguments of qsub")
