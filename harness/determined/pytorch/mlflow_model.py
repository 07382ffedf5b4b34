"""A `PyTorchTrial`'s checkpoint as a model of MLflow's flavour ``python_function``.

``mlflow.pyfunc.load_model("models:/name@champion")`` comes here for a checkpoint without an ``MLmodel``: the
cluster's MLflow server names this module in the one that it makes up. It needs `determined` and torch where
it is loaded, and runs the checkpoint's code, as every loading of a checkpoint does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from determined.pytorch._load import load_trial_from_checkpoint_path

if TYPE_CHECKING:
    from determined.pytorch import PyTorchTrial


class PyFuncModel:
    """``trial``: the trial with the checkpoint's weights; ``model``: the first model that it wraps."""

    def __init__(self, trial: PyTorchTrial) -> None:
        self.trial = trial
        self.model = _model_of(trial)
        self.model.eval()

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """The model's output for a batch, on the CPU and without gradients.

        ``model_input``: what ``forward`` takes, as an array or tensor of the shape (batch, …), or a data
        frame whose columns are the features; a dictionary of these goes to ``forward`` as it is. Tensors
        of the answer are arrays of the shape (batch, …).
        """
        with torch.no_grad():
            return _as_arrays(self.model(_as_tensors(model_input)))


def _load_pyfunc(path: str) -> PyFuncModel:
    """MLflow's entry point; ``path`` is the folder of the checkpoint's files."""
    return PyFuncModel(
        load_trial_from_checkpoint_path(path, torch_load_kwargs={"map_location": "cpu"})
    )


def _model_of(trial: PyTorchTrial) -> torch.nn.Module:
    models = getattr(getattr(trial, "context", None), "models", None) or [
        value for value in vars(trial).values() if isinstance(value, torch.nn.Module)
    ]
    if not models:
        raise ValueError(f"{type(trial).__name__} wraps no model (context.wrap_model)")
    found: torch.nn.Module = models[0]
    return found


def _as_tensors(given: Any) -> Any:
    if isinstance(given, dict):
        return {name: _as_tensors(value) for name, value in given.items()}
    if isinstance(given, torch.Tensor):
        return given
    values = np.asarray(given.to_numpy() if hasattr(given, "to_numpy") else given)
    # Networks have weights of 32 bits; data frames have numbers of 64.
    return torch.as_tensor(values.astype(np.float32) if values.dtype == np.float64 else values)


def _as_arrays(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return found.cpu().numpy()
    if isinstance(found, dict):
        return {name: _as_arrays(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return type(found)(_as_arrays(value) for value in found)
    return found
