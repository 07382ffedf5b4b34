"""Hugging Face's Trainer on the cluster: metrics, checkpoints, preemption by a callback.

::

    with det.core.init(distributed=...) as core_context:
        callback = DetCallback(core_context, args)
        trainer = Trainer(model, args, callbacks=[callback], ...)
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
"""

from determined._optional import require

require("transformers", "transformers", "determined.transformers")

from determined.transformers._callback import DetCallback  # noqa: E402

__all__ = ["DetCallback"]
