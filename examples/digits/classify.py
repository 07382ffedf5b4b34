"""Loads the best checkpoint of the newest `digits-random` experiment and classifies a digit with it."""

import pathlib
import tempfile

import torch
import train

from determined.experimental import client


def main() -> None:
    found = client.list_experiments(
        name="digits-random",
        sort_by=client.ExperimentSortBy.ID,
        order_by=client.OrderBy.DESC,
    )
    experiment = next((e for e in found if e.state == client.ExperimentState.COMPLETED), None)
    if experiment is None:
        raise SystemExit(
            "no completed digits-random experiment: "
            "det flow run examples/digits/random.yaml examples/digits"
        )
    checkpoint = experiment.top_checkpoint()
    print(f"experiment {experiment.id}: best checkpoint {checkpoint.uuid}")
    print(f"trial {checkpoint.training.trial_id}")

    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.download(str(pathlib.Path(folder) / "checkpoint"))
        state = torch.load(pathlib.Path(path) / "state.pt")
    model = train.build_model({**train.DEFAULTS, **checkpoint.training.hparams})
    model.load_state_dict(state["model"])
    model.eval()

    _, (images, labels) = train.load_data()
    with torch.no_grad():
        guesses = model(images).argmax(dim=1)
    image, label, guess = images[0].reshape(8, 8), labels[0].item(), guesses[0].item()
    for row in image:
        print("  " + "".join(" .:-=+*#%@"[int(9 * value)] * 2 for value in row))
    accuracy = (guesses == labels).float().mean().item()
    print(f"this is a {label}; the model says {guess}")
    print(f"accuracy on all {len(labels)} validation images: {accuracy:.3f}")


if __name__ == "__main__":
    main()
