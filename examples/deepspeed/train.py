"""The training of model_def.py by a script: `python train.py` on a laptop, or as an entrypoint.

On the cluster (`entrypoint: python3 train.py`) hyperparameters and the length of the training come from
the configuration, and a trial goes on from its latest checkpoint.
"""

import logging

from model_def import DigitsTrial

import determined as det
from determined import pytorch
from determined.pytorch import deepspeed

# What a training off the cluster uses.
HPARAMS = {"hidden_size": 64, "dropout": 0.1}


def main():
    info = det.get_cluster_info()
    on_cluster = info is not None and info.task_type == "TRIAL"
    with deepspeed.init(hparams=HPARAMS) as context:
        trainer = deepspeed.Trainer(DigitsTrial(context), context)
        trainer.fit(
            max_length=None if on_cluster else pytorch.Epoch(5),
            validation_period=pytorch.Epoch(1),
            latest_checkpoint=info.latest_checkpoint if on_cluster else None,
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    main()
