"""Keras on scikit-learn's handwritten digits: `python train.py`, or `det flow run const.yaml`."""

import logging
import os

# Before keras is imported; its other backends do as well.
os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import sklearn.datasets
import sklearn.model_selection

import determined as det
from determined.keras import DeterminedCallback

# What a training off the cluster uses.
HPARAMS = {"learning_rate": 0.01, "hidden_size": 64}
# The most that const.yaml lets a trial train: fit() has to be told.
EPOCHS = 5


def load_data():
    """1,437 training and 360 validation images (8 x 8 pixels, values 0..1), always the same split."""
    digits = sklearn.datasets.load_digits()
    train_x, valid_x, train_y, valid_y = sklearn.model_selection.train_test_split(
        digits.data / 16.0, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    return (train_x, train_y), (valid_x, valid_y)


def build_model(hparams):
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(int(hparams["hidden_size"]), activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(hparams["learning_rate"]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main(core_context, hparams, seed, latest_checkpoint, continue_id):
    keras.utils.set_random_seed(seed)
    (images, labels), validation = load_data()
    build_model(hparams).fit(
        images,
        labels,
        batch_size=32,
        epochs=EPOCHS,
        validation_data=validation,
        callbacks=[DeterminedCallback(core_context, latest_checkpoint, continue_id)],
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    on_cluster = info is not None and info.task_type == "TRIAL"
    with det.core.init() as context:
        main(
            context,
            {**HPARAMS, **(info.trial.hparams if on_cluster else {})},
            info.trial.trial_seed if on_cluster else 0,
            info.latest_checkpoint if on_cluster else None,
            info.trial.trial_id if on_cluster else "local",
        )
