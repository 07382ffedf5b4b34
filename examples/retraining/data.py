"""Handwritten digits that drift: each month's images are a little noisier than those of the month before.

The month stands in a file, as the date of a real data set would; `python data.py next` turns the page. Each
account has its own file, so trials that run as another account (--task-user) need DRIFT_FILE.
"""

import os
import pathlib
import sys

import sklearn.datasets
import sklearn.model_selection
import torch

MONTH = pathlib.Path(os.environ.get("DRIFT_FILE", f"/tmp/determined-example-month-{os.getuid()}"))


def month():
    """The present month, 0 at first."""
    return int(MONTH.read_text()) if MONTH.exists() else 0


def version():
    """What the training is recorded with; the same word means the same data."""
    return f"month-{month()}"


def load(of_month):
    """(training, held-out) images and labels of a month: 1,078 and 719 images of 8 x 8 pixels."""
    digits = sklearn.datasets.load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    random = torch.Generator().manual_seed(of_month)
    if of_month:  # the scanner has been turned, and gets noisier
        images = images.reshape(-1, 8, 8).flip(1).reshape(-1, 64)
        images = images + 0.05 * of_month * torch.randn(images.shape, generator=random)
    labels = torch.tensor(digits.target)
    train, held_out = sklearn.model_selection.train_test_split(
        torch.arange(len(labels)), test_size=0.4, random_state=0, stratify=labels
    )
    return (images[train], labels[train]), (images[held_out], labels[held_out])


if __name__ == "__main__":
    if sys.argv[1:] == ["next"]:
        MONTH.write_text(str(month() + 1))
    if sys.argv[1:] == ["first"]:
        MONTH.unlink(missing_ok=True)
    print(version())
