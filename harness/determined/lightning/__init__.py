"""Lightning's Trainer on the cluster: metrics, checkpoints, preemption by a callback.

::

    with det.core.init(distributed=...) as core_context:
        callback = DeterminedCallback(core_context)
        trainer = lightning.Trainer(callbacks=[callback], ...)
        trainer.fit(module, ckpt_path=callback.ckpt_path)
"""

from determined._optional import require

require("lightning.pytorch", "lightning", "determined.lightning")

from determined.lightning._callback import DeterminedCallback  # noqa: E402

__all__ = ["DeterminedCallback"]
