"""Training outside of the cluster that reports to the cluster.

Run it with any Python that has determined and scikit-learn, where `det` reaches a service:

    python3 train.py

Kill it at any time and run it again: it goes on with the same trial, from its latest checkpoint.
`det experiment list` shows it, `det experiment logs` and `plot` work as for any other.
"""

import argparse
import logging
import pickle

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

import determined as det
from determined.experimental import core_v2

EPOCHS = 20
HPARAMS = {"alpha": 0.001, "batch_size": 128}


def main(name: str) -> None:
    config = core_v2.Config(
        name="digits, unmanaged",
        hparams=HPARAMS,
        labels=["example"],
        # What `det experiment list-trials` and the plot compare trials by.
        searcher={"name": "single", "metric": "accuracy", "smaller_is_better": False},
        # The names under which this run is found again.
        external_experiment_id=name,
        external_trial_id=name,
    )
    core_v2.init(config=config)

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.25, random_state=0)
    train_images, test_images, train_labels, test_labels = split

    model = SGDClassifier(loss="log_loss", alpha=HPARAMS["alpha"], random_state=0)
    first_epoch = 0
    latest = core_v2.info.latest_checkpoint
    if latest is not None:
        with core_v2.checkpoint.restore_path(latest) as path:
            model, first_epoch = pickle.loads((path / "state.pkl").read_bytes())
        print(f"going on after epoch {first_epoch}")

    for epoch in range(first_epoch, EPOCHS):
        # A generator of its own per epoch: a resumed run sees the batches the unbroken one would.
        order = np.random.default_rng(epoch).permutation(len(train_images))
        for start in range(0, len(order), HPARAMS["batch_size"]):
            batch = order[start : start + HPARAMS["batch_size"]]
            model.partial_fit(train_images[batch], train_labels[batch], classes=np.arange(10))
        done = epoch + 1
        core_v2.train.report_training_metrics(
            steps_completed=done, metrics={"accuracy": model.score(train_images, train_labels)}
        )
        accuracy = model.score(test_images, test_labels)
        core_v2.train.report_validation_metrics(done, {"accuracy": accuracy})
        core_v2.train.report_progress(done / EPOCHS)
        print(f"epoch {done}: accuracy {accuracy:.3f}")
        if done % 5 == 0:
            with core_v2.checkpoint.store_path({"steps_completed": done}) as (path, _):
                (path / "state.pkl").write_bytes(pickle.dumps((model, done)))

    print("charts:", core_v2.url_reverse_webui_exp_view())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="digits", help="another name is another trial")
    main(parser.parse_args().name)
