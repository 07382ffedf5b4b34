"""Reads the several forms of the result of a LightningModule's ``configure_optimizers()``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from determined import errors

FORMS = "one optimizer, ([optimizer], [schedulers]), or {'optimizer': ..., 'lr_scheduler': ...}"


@dataclass(frozen=True)
class SteppedScheduler:
    """A scheduler, stepped every ``frequency`` epochs or steps (``interval``).

    ``monitor``: the validation metric that a ReduceLROnPlateau is stepped with.
    """

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None

    @property
    def is_plateau(self) -> bool:
        return isinstance(self.scheduler, ReduceLROnPlateau)


def configured(module: Any) -> tuple[Optimizer, list[SteppedScheduler]]:
    """The optimizer and the schedulers of a LightningModule.

    Raises errors.InvalidModelException for several optimizers and for unknown forms.
    """
    found = module.configure_optimizers()
    schedulers: list[Any] = []
    monitor = None
    if isinstance(found, list | tuple) and len(found) == 2 and isinstance(found[0], list | tuple):
        found, schedulers = found[0], list(found[1])
    if isinstance(found, list | tuple) and len(found) == 1:
        (found,) = found
    if isinstance(found, Mapping):
        monitor = found.get("monitor")
        if found.get("lr_scheduler") is not None:
            schedulers = [found["lr_scheduler"]]
        found = found.get("optimizer")
    if not isinstance(found, Optimizer):
        raise errors.InvalidModelException(
            f"{type(module).__name__}.configure_optimizers() must return {FORMS}; found {found!r}"
        )
    return found, [_schedule(module, entry, monitor) for entry in schedulers]


def _schedule(module: Any, entry: Any, monitor: str | None) -> SteppedScheduler:
    if not isinstance(entry, Mapping):
        entry = {"scheduler": entry}
    allowed = (
        "scheduler",
        "interval",
        "frequency",
        "monitor",
        "strict",
        "name",
        "reduce_on_plateau",
    )
    unknown = sorted(set(entry) - set(allowed))
    interval = entry.get("interval") or "epoch"
    if unknown or entry.get("scheduler") is None or interval not in ("epoch", "step"):
        raise errors.InvalidModelException(
            f"a scheduler of {type(module).__name__}.configure_optimizers() must be one of torch's, or a "
            f"dict with scheduler, interval (epoch or step), frequency, monitor; found {dict(entry)!r}"
        )
    made = SteppedScheduler(
        entry["scheduler"],
        interval,
        int(entry.get("frequency") or 1),
        entry.get("monitor") or monitor,
    )
    if made.is_plateau and made.monitor is None:
        raise errors.InvalidModelException(
            f"ReduceLROnPlateau of {type(module).__name__}.configure_optimizers() needs a monitor, the "
            "name of a validation metric"
        )
    return made
