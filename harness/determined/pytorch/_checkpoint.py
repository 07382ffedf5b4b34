"""Writes and loads the checkpoints of trial classes.

A checkpoint is a directory of

- ``state_dict.pth`` (torch.save): a dict of ``models_state_dict``, ``optimizers_state_dict``,
  ``lr_schedulers_state_dict`` (lists, in the order of wrapping), ``callbacks`` (by name), ``rng_state``,
  and, if there are any, ``rng_states`` (of several processes, by rank), ``scaler_state_dict`` and
  ``gradients`` (that no optimizer step has used yet);
- ``trial_state.pkl``: the position, a pickled dict of integers;
- ``load_data.json``: class, hyperparameters and configuration, to build the trial again;
- ``code/``: the training's code.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import torch

import determined
from determined import errors
from determined.pytorch import _code, _rng
from determined.pytorch._callback import Callbacks
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._training_context import TrainingContext

logger = logging.getLogger("determined.pytorch")

STATE_FILE = "state_dict.pth"
POSITION_FILE = "trial_state.pkl"
LOAD_FILE = "load_data.json"
CODE_FOLDER = "code"


@dataclasses.dataclass
class TrialPosition:
    """The position of a trial; ``last_ckpt`` and ``last_val`` are in batches. The names are those of the
    file's keys.
    """

    trial_id: int = 0
    last_ckpt: int = 0
    step_id: int = 0
    last_val: int = 0
    batches_trained: int = 0
    epochs_trained: int = 0


def metadata(position: TrialPosition) -> dict[str, Any]:
    """The metadata of a checkpoint, as the registry stores it."""
    return {
        "steps_completed": position.batches_trained,
        "framework": f"torch-{torch.__version__}",
        "format": "pickle",
        "determined_version": determined.__version__,
    }


def collect(
    context: PyTorchTrialContext, callbacks: Callbacks, rng_states: list[dict[str, Any]]
) -> dict[str, Any]:
    """The content of ``state_dict.pth``; ``rng_states`` of all processes, by rank."""
    state: dict[str, Any] = {
        "models_state_dict": [model.state_dict() for model in context.models],
        "optimizers_state_dict": [optimizer.state_dict() for optimizer in context.optimizers],
        "lr_schedulers_state_dict": [scheduler.state_dict() for scheduler in context.lr_schedulers],
        "callbacks": callbacks.state_dicts(),
        "rng_state": rng_states[0],
    }
    if len(rng_states) > 1:
        state["rng_states"] = rng_states
    scaler = context._scaler or context._auto_scaler
    if scaler is not None:
        state["scaler_state_dict"] = scaler.state_dict()
    gradients = [_gradients(model) for model in context.models]
    if any(gradients):
        state["gradients"] = gradients
    return state


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def write(
    path: Path,
    state: dict[str, Any],
    position: TrialPosition,
    trial_class: type,
    context: PyTorchTrialContext,
    code: list[tuple[str, Path]],
) -> None:
    """Write all files of a checkpoint to ``path``."""
    torch.save(state, path / STATE_FILE)
    write_facts(path, position, trial_class, context, code)


def write_facts(
    path: Path,
    position: TrialPosition,
    trial_class: type,
    context: TrainingContext,
    code: list[tuple[str, Path]],
) -> None:
    """Write the files that checkpoints of every trial class have beside the state."""
    _code.write(code, path / CODE_FOLDER)
    (path / POSITION_FILE).write_bytes(pickle.dumps(dataclasses.asdict(position)))
    load = {
        "trial_type": context._kind,
        "experiment_config": dict(context.get_experiment_config()) or None,
        "hparams": context.get_hparams(),
        "trial_cls_spec": _code.name_of(trial_class),
        "is_trainer": True,
    }
    (path / LOAD_FILE).write_text(json.dumps(load, default=str))


def read_position(
    path: Path, state_file: str = STATE_FILE, kind: str = "PyTorchTrial"
) -> TrialPosition:
    """The position of the checkpoint's trial. Raises errors.InvalidCheckpointException."""
    if not (path / state_file).is_file():
        found = ", ".join(sorted(entry.name for entry in path.iterdir())) or "nothing"
        raise errors.InvalidCheckpointException(
            f"{path} is not a checkpoint of a {kind}: there is no {state_file}, found {found}"
        )
    try:
        values = pickle.loads((path / POSITION_FILE).read_bytes())
    except FileNotFoundError:
        return TrialPosition()
    names = {field.name for field in dataclasses.fields(TrialPosition)}
    return TrialPosition(**{name: value for name, value in values.items() if name in names})


def read_state(path: Path, **options: Any) -> dict[str, Any]:
    """The content of ``state_dict.pth``, with today's names; ``options`` are those of torch.load."""
    # The states of callbacks and random generators are more than tensors, and loading a checkpoint runs its
    # code anyway.
    defaults: dict[str, Any] = {"map_location": "cpu", "weights_only": False}
    state: dict[str, Any] = torch.load(path / STATE_FILE, **{**defaults, **options})
    for one, many in (
        ("model_state_dict", "models_state_dict"),
        ("optimizer_state_dict", "optimizers_state_dict"),
        ("lr_scheduler", "lr_schedulers_state_dict"),
    ):
        # Until 0.12 a trial had one of each.
        if one in state and many not in state:
            state[many] = [state.pop(one)]
    return state


def load(
    state: dict[str, Any],
    context: PyTorchTrialContext,
    callbacks: Callbacks,
    going_on: bool,
) -> None:
    """Load ``state`` into the objects that the trial has wrapped.

    ``going_on``: training continues with the batch after the checkpoint, so gradients and random generators
    are restored, too.

    Raises errors.InvalidCheckpointException when the trial has wrapped other objects than the checkpoint
    holds.
    """
    load_models(state, context)
    parts: tuple[tuple[str, str, list[Any]], ...] = (
        ("optimizers", "optimizers_state_dict", context.optimizers),
        ("learning rate schedulers", "lr_schedulers_state_dict", context.lr_schedulers),
    )
    for what, key, wrapped in parts:
        states = state.get(key, [])
        _check_count(what, len(states), len(wrapped))
        for part, its_state in zip(wrapped, states, strict=True):
            part.load_state_dict(its_state)
    scaler = context._scaler or context._auto_scaler
    if scaler is not None and state.get("scaler_state_dict"):
        scaler.load_state_dict(state["scaler_state_dict"])
    load_callbacks(state, callbacks)
    if going_on:
        _load_gradients(state, context)
        dist = context.distributed
        every = state.get("rng_states") or []
        # With another number of processes there is nothing to be exact about.
        own = every[dist.rank] if len(every) == dist.size else state.get("rng_state")
        _rng.restore(own or {}, context.device)


def _load_gradients(state: dict[str, Any], context: PyTorchTrialContext) -> None:
    for model, gradients in zip(context.models, state.get("gradients", []), strict=False):
        for name, parameter in model.named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter.device)


def load_callbacks(state: dict[str, Any], callbacks: Callbacks) -> None:
    """Give each callback its state; warns of states without a callback."""
    unknown = callbacks.load_state_dicts(state.get("callbacks") or {})
    if unknown:
        logger.warning(
            "the checkpoint has states of callbacks that the trial lacks; they are ignored: %s",
            ", ".join(unknown),
        )


def load_models(state: dict[str, Any], context: PyTorchTrialContext) -> None:
    """Load only the models' weights."""
    states = state.get("models_state_dict", [])
    _check_count("models", len(states), len(context.models))
    for model, weights in zip(context.models, states, strict=True):
        model.load_state_dict(_unwrapped(weights, model))


def _unwrapped(weights: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """The weights of a model that was wrapped for several processes, with the names of the model itself."""
    prefix = "module."
    wrapped = all(name.startswith(prefix) for name in weights)
    if not weights or not wrapped or all(name.startswith(prefix) for name in model.state_dict()):
        return weights
    return {name.removeprefix(prefix): value for name, value in weights.items()}


def _check_count(what: str, saved: int, wrapped: int) -> None:
    if saved != wrapped:
        raise errors.InvalidCheckpointException(
            f"the checkpoint has {saved} {what}, but the trial has wrapped {wrapped}: wrap "
            "the same ones in the same order"
        )
