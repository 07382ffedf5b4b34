"""Loops that are not ours (Hugging Face, Lightning) count the processes of a training themselves."""

from __future__ import annotations

from determined import core


def check(dist: core.DistributedContext, loop: str, processes: int, advice: str) -> None:
    """Raises ValueError when ``loop`` trains in other than the trial's ``processes``: those that do not know
    of each other would train as many models, or report as many times. ``advice``: for a loop of too few."""
    if dist.size == processes:
        return
    if dist.size < processes:
        advice = (
            "start the script by determined.launch.torch_distributed and give core.init() "
            "distributed=DistributedContext.from_torch_distributed()"
        )
    raise ValueError(
        f"core_context is of {dist.size} processes, the {loop} of {processes}: {advice}"
    )
