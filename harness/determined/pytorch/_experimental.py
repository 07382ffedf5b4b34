"""Switches that may change between releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from determined.pytorch._context import PyTorchTrialContext


class PyTorchExperimentalContext:
    """``context.experimental``; its methods are for the trial's ``__init__``."""

    def __init__(self, parent: PyTorchTrialContext) -> None:
        self._parent = parent

    def use_amp(self) -> None:
        """Mixed precision without further code: the forward pass of each wrapped model runs under
        torch's autocast (float16 on GPUs, bfloat16 elsewhere) and returns float32, losses are scaled on
        GPUs.
        """
        self._parent._use_amp()

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow data loaders other than ``pytorch.DataLoader``.

        Every process of the trial reads all of their data, after a resume from the beginning.
        """
        self._parent._repro_checks_disabled = True

    def disable_auto_to_device(self) -> None:
        """Pass batches to the trial as the loader gives them; the trial calls ``context.to_device()``
        itself.
        """
        self._parent._auto_to_device = False
