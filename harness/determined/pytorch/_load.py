"""Loads trials from checkpoints, for inspection or prediction."""

from __future__ import annotations

import ast
import importlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from determined import core, errors
from determined._import import import_from_path
from determined.pytorch import _checkpoint
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._trial import PyTorchTrial


class CheckpointLoadContext(PyTorchTrialContext):
    """A context for building a trial without training it: no cluster, no reports."""

    def __init__(
        self, hparams: dict[str, Any] | None = None, exp_conf: dict[str, Any] | None = None
    ) -> None:
        dist = core.DummyDistributedContext()
        mode = core.PreemptMode.WorkersAskChief
        super().__init__(
            core._context._dummy_context(dist, None, mode),
            None,
            hparams,
            slots_per_trial=1,
            num_gpus=torch.cuda.device_count(),
            exp_conf=exp_conf,
            enable_tensorboard_logging=False,
        )


def load_trial_from_checkpoint_path(
    path: str | os.PathLike[str],
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: dict[str, Any] | None = None,
    torch_load_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> PyTorchTrial:
    """The trial of the checkpoint in directory ``path``, its models with the checkpoint's weights.

    Args:
        trial_class: the trial's class; by default the class in the checkpoint's code. trial_kwargs:
        arguments for the class beside ``context``. torch_load_kwargs: arguments for ``torch.load``; other
        keyword arguments are passed to it, too.

    Raises:
        errors.InvalidCheckpointException: the directory is not a trial's checkpoint, the class cannot be
        found, or the class has other models.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise errors.InvalidCheckpointException(f"there is no directory {folder}")
    facts = _facts(folder)
    _checkpoint.read_position(folder)  # raises for other checkpoints
    if trial_class is None:
        trial_class = _class_in(folder, facts)
    context = CheckpointLoadContext(facts.get("hparams"), facts.get("experiment_config"))
    # What else it takes is the class' own business.
    make: Any = trial_class
    trial: PyTorchTrial = make(context, **(trial_kwargs or {}))
    state = _checkpoint.read_state(folder, **{**kwargs, **(torch_load_kwargs or {})})
    _checkpoint.load_models(state, trial.context if hasattr(trial, "context") else context)
    return trial


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((folder / _checkpoint.LOAD_FILE).read_text())
    except FileNotFoundError:
        return {}
    kind = facts.get("trial_type", "PyTorchTrial")
    if kind != "PyTorchTrial":
        raise errors.InvalidCheckpointException(
            f"{folder} is a checkpoint of a {kind}, not of a PyTorchTrial"
        )
    return facts


def _class_in(folder: Path, facts: dict[str, Any]) -> type[PyTorchTrial]:
    spec = str(facts.get("trial_cls_spec") or "")
    module, _, name = spec.partition(":")
    code = folder / _checkpoint.CODE_FOLDER
    if not module or not name:
        raise errors.InvalidCheckpointException(
            f"{folder} does not name the class of its trial: give trial_class"
        )
    if not code.is_dir() or not any(code.iterdir()):
        raise errors.InvalidCheckpointException(
            f"the code of {spec} is not in {folder}: give trial_class"
        )
    if module == "__main__":
        module = _module_of(name, code)
    try:
        with import_from_path(code):
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise errors.InvalidCheckpointException(
            f"the class {spec} cannot be imported from {code}: {error}"
        ) from error
    if not isinstance(found, type) or not issubclass(found, PyTorchTrial):
        raise errors.InvalidCheckpointException(
            f"{spec} in {code} is not a PyTorchTrial: give trial_class"
        )
    return found


def _module_of(name: str, code: Path) -> str:
    """Find the module that defines class ``name``, which a script's checkpoint does not always name."""
    candidates = []
    for path in sorted(code.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text())
        except (SyntaxError, UnicodeDecodeError):
            continue
        if any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
            candidates.append(".".join(path.relative_to(code).with_suffix("").parts))
    if len(candidates) != 1:
        found = ", ".join(candidates) or "none"
        raise errors.InvalidCheckpointException(
            f"cannot tell which module in {code} defines {name} (found {found}): give trial_class"
        )
    return candidates[0]
