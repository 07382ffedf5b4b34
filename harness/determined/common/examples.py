"""The examples that a new project can start from: for ``det init``, and for the pages of the service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Example:
    """A folder of ``examples/`` that a project can start from.

    ``config`` and ``script`` are the files of the first run, on the cluster and off it; ``others`` come
    besides. ``packages`` are what the script imports, which come with ``extras``.
    """

    folder: str
    about: str
    packages: tuple[str, ...]
    extras: tuple[str, ...]
    others: tuple[str, ...] = ()
    config: str = "const.yaml"
    script: str = "train.py"

    @property
    def files(self) -> tuple[str, ...]:
        return (self.config, *self.others, self.script)


_TORCH = ("torch", "sklearn")

EXAMPLES = {
    "core": Example(
        "digits",
        "a training loop of your own in PyTorch, through the Core API; one trial, and searches",
        packages=_TORCH,
        extras=("examples",),
        others=("random.yaml", "adaptive.yaml"),
    ),
    "pytorch": Example(
        "digits_pytorch_trial",
        "a PyTorchTrial: the class says what a batch is, the Trainer does the rest; one trial, a search",
        packages=_TORCH,
        extras=("examples",),
        others=("adaptive.yaml", "distributed.yaml", "model_def.py"),
    ),
    "transformers": Example(
        "huggingface",
        "Hugging Face's Trainer with one callback; in one process or in several",
        packages=(*_TORCH, "transformers", "accelerate"),
        extras=("examples", "transformers"),
        others=("distributed.yaml",),
    ),
    "lightning": Example(
        "lightning",
        "Lightning's Trainer with one callback; in one process or in several",
        packages=(*_TORCH, "lightning"),
        extras=("examples", "lightning"),
        others=("distributed.yaml",),
    ),
    "keras": Example(
        "keras",
        "Keras 3 on PyTorch's backend, with one callback",
        packages=(*_TORCH, "keras"),
        extras=("examples", "keras"),
    ),
    "sklearn": Example(
        "sklearn",
        "a scikit-learn model through the Core API, without PyTorch; one trial, a search",
        packages=("sklearn",),
        extras=("examples",),
        others=("random.yaml",),
    ),
    "ddp": Example(
        "distributed",
        "several processes of one trial: torch's DistributedDataParallel under the Core API",
        packages=_TORCH,
        extras=("examples",),
        config="distributed.yaml",
    ),
    "fsdp": Example(
        "fsdp",
        "a model in parts on several processes: torch's FSDP and sharded checkpoints under the Core API",
        packages=_TORCH,
        extras=("examples",),
    ),
}


def folder() -> Path:
    """In the wheel they lie in the package `determined`, in a checkout at the top."""
    package = Path(__file__).parents[1]
    inside = package / "examples"
    return inside if inside.exists() else package.parents[1] / "examples"
