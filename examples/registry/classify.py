"""Loads the champion of the model `digits` with the code that trained it, and classifies a digit.

Nothing of the training is needed here but the model's name: checkpoint, hyperparameters and code come from
the cluster. The code runs on this machine, so load only what you trust.
"""

import pathlib
import shutil
import sys
import tempfile

import torch

from determined.experimental import client


def main() -> None:
    version = client.get_model("digits").get_version("champion")
    training = version.checkpoint.training
    print(f"digits@champion is version {version.model_version}, registered by {version.username}")
    print(f"experiment {training.experiment_id}, trial {training.trial_id}, {training.hparams}")

    with tempfile.TemporaryDirectory() as folder:
        packed = client.get_experiment(training.experiment_id).download_code(folder)
        shutil.unpack_archive(packed, folder, "gztar")
        with tempfile.TemporaryDirectory() as files:
            path = version.checkpoint.download(str(pathlib.Path(files) / "checkpoint"))
            state = torch.load(pathlib.Path(path) / "state.pt")
        sys.path.insert(0, folder)
        import train

        model = train.build_model({**train.DEFAULTS, **training.hparams})
        model.load_state_dict(state["model"])
        model.eval()
        _, (images, labels) = train.load_data()
    with torch.no_grad():
        guesses = model(images).argmax(dim=1)
    print(f"this is a {labels[0].item()}; the model says {guesses[0].item()}")
    accuracy = (guesses == labels).float().mean().item()
    print(f"accuracy on all {len(labels)} validation images: {accuracy:.3f}")


if __name__ == "__main__":
    main()
