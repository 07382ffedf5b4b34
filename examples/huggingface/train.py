"""Hugging Face's Trainer on scikit-learn's handwritten digits: offline, on a CPU.

    python train.py                                                                  # on a laptop
    python3 -m determined.launch.torch_distributed --nproc_per_node=2 -- train.py    # in two processes
    det flow run const.yaml                                                          # on the cluster

The script builds a tiny vision transformer. The only addition for the cluster is one callback of the
Trainer.
"""

import logging
import os
import tempfile

import sklearn.datasets
import sklearn.model_selection
import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import determined as det
from determined.transformers import DetCallback

# What a training off the cluster uses.
HPARAMS = {"learning_rate": 3e-3, "hidden_size": 32, "layers": 1}


def load_data():
    """1,437 training and 360 validation images (8 x 8 pixels, values 0..1), always the same split."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
    train, valid = sklearn.model_selection.train_test_split(
        range(len(digits.target)), test_size=0.2, random_state=0, stratify=digits.target
    )

    def records(indices):
        return [{"pixel_values": images[i], "labels": int(digits.target[i])} for i in indices]

    return records(train), records(valid)


def build_model(hparams):
    return ViTForImageClassification(
        ViTConfig(
            image_size=8,
            num_channels=1,
            patch_size=2,  # 16 patches of 4 pixels
            hidden_size=int(hparams["hidden_size"]),
            num_hidden_layers=int(hparams["layers"]),
            num_attention_heads=4,
            intermediate_size=2 * int(hparams["hidden_size"]),
            initializer_range=0.1,
            num_labels=10,
        )
    )


def accuracy(predictions):
    scores, labels = predictions
    return {"accuracy": float((scores.argmax(-1) == labels).mean())}


def main(core_context, hparams, seed, folder):
    args = TrainingArguments(
        output_dir=folder,
        num_train_epochs=6,  # off the cluster; there it is searcher.max_length that counts
        per_device_train_batch_size=32 // core_context.distributed.size,
        per_device_eval_batch_size=360,
        learning_rate=hparams["learning_rate"],
        lr_scheduler_type="cosine",
        eval_strategy="epoch",
        save_strategy="no",  # at lengths' ends and preemptions the callback saves
        logging_steps=45,
        use_cpu=not torch.cuda.is_available(),  # else several processes on CPUs train apart
        seed=seed,
        disable_tqdm=True,
        report_to="none",
    )
    callback = DetCallback(core_context, args)
    # The seed is set when the Trainer is made; the model's weights are to follow from it as well.
    torch.manual_seed(seed)
    train, valid = load_data()
    trainer = Trainer(
        model=build_model(hparams),
        args=args,
        train_dataset=train,
        eval_dataset=valid,
        compute_metrics=accuracy,
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    on_cluster = info is not None and info.task_type == "TRIAL"
    several = int(os.environ.get("WORLD_SIZE", 1)) > 1
    workers = det.core.DistributedContext.from_torch_distributed() if several else None
    with det.core.init(distributed=workers) as context, tempfile.TemporaryDirectory() as own:
        main(
            context,
            {**HPARAMS, **(info.trial.hparams if on_cluster else {})},
            info.trial.trial_seed if on_cluster else 0,
            # Checkpoints are kept by the callback; the processes of a machine write theirs into one folder.
            context.distributed.broadcast_local(own),
        )
