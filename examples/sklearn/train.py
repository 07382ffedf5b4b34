"""A scikit-learn model through the Core API: `python train.py`, or `det flow run const.yaml`.

One file, top to bottom: data, model, training loop. For models that learn batch by batch (`partial_fit`); one
that has only `fit` is fitted once, and reports once.
"""

import logging
import pathlib

import joblib
import sklearn.datasets
import sklearn.linear_model
import sklearn.metrics
import sklearn.model_selection

import determined as det

# What a trial uses where the configuration's `hyperparameters` say nothing.
DEFAULTS = {"alpha": 0.001, "learning_rate": 0.01}


def load_data():
    """1,437 training and 360 validation images (64 pixels, values 0..1), always the same split."""
    digits = sklearn.datasets.load_digits()
    train_x, valid_x, train_y, valid_y = sklearn.model_selection.train_test_split(
        digits.data / 16.0, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    return (train_x, train_y), (valid_x, valid_y)


def build_model(hparams, seed):
    """Logistic regression for 10 digits, by stochastic gradient descent."""
    return sklearn.linear_model.SGDClassifier(
        loss="log_loss",
        alpha=hparams["alpha"],
        learning_rate="constant",
        eta0=hparams["learning_rate"],
        random_state=seed,
    )


def validate(model, images, labels):
    """Loss and accuracy on the validation images."""
    scores = model.predict_proba(images)
    return {
        "validation_loss": float(sklearn.metrics.log_loss(labels, scores)),
        "accuracy": float((scores.argmax(axis=1) == labels).mean()),
    }


def save(core_context, model, epoch):
    """The model has everything: weights, and how often it has seen the data."""
    with core_context.checkpoint.store_path({"steps_completed": epoch}) as (path, _):
        joblib.dump((model, epoch), pathlib.Path(path) / "model.joblib")


def main(core_context, hparams, seed, latest_checkpoint):
    (images, labels), validation = load_data()
    model, epoch = build_model(hparams, seed), 0
    if latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(latest_checkpoint) as path:
            model, epoch = joblib.load(pathlib.Path(path) / "model.joblib")
        logging.info("going on after epoch %d", epoch)

    for op in core_context.searcher.operations():  # off the cluster: one, of one epoch
        while epoch < op.length:
            model.partial_fit(images, labels, classes=range(10))
            epoch += 1
            metrics = validate(model, *validation)
            core_context.train.report_validation_metrics(epoch, metrics)
            op.report_progress(epoch)
            logging.info("epoch %d: accuracy %.3f", epoch, metrics["accuracy"])
            if core_context.preempt.should_preempt():
                save(core_context, model, epoch)
                return
        save(core_context, model, epoch)
        op.report_completed(validate(model, *validation)["accuracy"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    on_cluster = info is not None and info.task_type == "TRIAL"
    with det.core.init() as context:
        main(
            context,
            {**DEFAULTS, **(info.trial.hparams if on_cluster else {})},
            info.trial.trial_seed if on_cluster else 0,
            info.latest_checkpoint if on_cluster else None,
        )
