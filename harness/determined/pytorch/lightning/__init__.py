"""A LightningModule as a PyTorchTrial: our Trainer trains it, in our checkpoints, with exact resume.

To train with Lightning's own Trainer, use :mod:`determined.lightning`.
"""

from determined._optional import require

require("lightning.pytorch", "lightning", "determined.pytorch.lightning")

from determined.pytorch.lightning._adapter import LightningAdapter  # noqa: E402

__all__ = ["LightningAdapter"]
