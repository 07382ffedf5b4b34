"""Checks that a foreign training loop (Hugging Face, Lightning) has as many processes as the trial."""

from __future__ import annotations

from determined import core


def check(dist: core.DistributedContext, loop: str, processes: int, advice: str) -> None:
    """Raises ValueError unless ``loop`` counts the same number of ``processes`` as the trial. Otherwise each
    process would train a separate model, or report by itself. ``advice``: what to do when the loop has too
    few.
    """
    if dist.size == processes:
        return
    if dist.size < processes:
        advice = (
            "start the script by determined.launch.torch_distributed and give core.init() "
            "distributed=DistributedContext.from_torch_distributed()"
        )
    raise ValueError(
        f"core_context has {dist.size} processes, but the {loop} has {processes}: {advice}"
    )
