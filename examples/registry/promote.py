"""Registers the best checkpoint of the newest `digits-random` search as a version of the model `digits`, and
makes it the champion if it is better than the champion so far.
"""

from determined.common.api.errors import NotFoundException
from determined.experimental import client

SEARCH, MODEL, METRIC = "digits-random", "digits", "accuracy"


def metric(version: client.ModelVersion) -> float:
    return version.checkpoint.training.validation_metrics["avgMetrics"][METRIC]


def main() -> None:
    found = client.list_experiments(
        name=SEARCH, sort_by=client.ExperimentSortBy.ID, order_by=client.OrderBy.DESC
    )
    experiment = next((e for e in found if e.state == client.ExperimentState.COMPLETED), None)
    if experiment is None:
        raise SystemExit(
            f"no completed {SEARCH} experiment: "
            "det flow run examples/digits/random.yaml examples/digits"
        )
    try:
        model = client.get_model(MODEL)
    except NotFoundException:
        model = client.create_model(MODEL, "handwritten digits, 8 x 8 pixels")

    best = model.register_version(experiment.top_checkpoint().uuid)
    best.set_comment(f"best of experiment {experiment.id}")
    print(f"{MODEL} version {best.model_version}: {METRIC} {metric(best):.3f}")

    if "champion" in model.aliases:
        champion = model.get_version("champion")
        print(f"champion so far: version {champion.model_version}, {METRIC} {metric(champion):.3f}")
        if metric(champion) >= metric(best):
            print("it stays the champion")
            return
    model.set_alias("champion", best.model_version)
    print(f"version {best.model_version} is the champion")


if __name__ == "__main__":
    main()
