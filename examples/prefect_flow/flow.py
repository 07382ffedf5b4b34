"""A Prefect flow of your own, with experiments as its steps: train, score, register, promote.

    eval "$(det prefect env)"            # the cluster's Prefect, whose page shows the flow
    python flow.py                       # on this machine; the experiments run on the cluster

Each block is a Prefect task. A task that is tried again, or a flow that is run again after its process was
killed, finds its experiments instead of submitting them twice; cancelling the flow kills them.
"""

import asyncio
import pathlib

from prefect import flow

from determined_flows import blocks

DIGITS = pathlib.Path(__file__).parents[1] / "digits"
HERE = pathlib.Path(__file__).parent
MODEL = "digits-flow"
CONFIG = {
    "name": "digits-flow",
    "entrypoint": "python3 train.py",
    "hyperparameters": {"learning_rate": 0.01, "hidden_size": 64, "batch_size": 32, "dropout": 0.1},
    "searcher": {
        "name": "single",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_length": {"epochs": 3},
    },
    "max_restarts": 0,
}


@flow(log_prints=True)
async def train_and_promote(least_accuracy: float = 0.9) -> int | None:
    """The version that was promoted; None: the accuracy was too low."""
    # `cached`: the same configuration with the same code is not trained twice.
    trained = await blocks.run_experiment(CONFIG, DIGITS, cached=True)
    best = await blocks.best_checkpoint(trained.id)
    scored = await blocks.evaluate(
        best.uuid, "scores:scores", DIGITS, includes=[HERE / "scores.py"]
    )
    print(f"experiment {trained.id}: accuracy {scored.scores['accuracy']:.3f}")
    if scored.scores["accuracy"] < least_accuracy:
        return None
    version = await blocks.register_model(MODEL, best.uuid, comment="by a flow")
    moved = await blocks.promote(MODEL, version.version)
    print(f"{MODEL}: the champion is version {moved.version}, before it was {moved.before}")
    return version.version


if __name__ == "__main__":
    asyncio.run(train_and_promote())
