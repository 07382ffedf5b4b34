"""Runs a trial class on the cluster as the experiment's configuration says: ``module:TrialClass``."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import logging
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import determined as det
from determined._trial import LegacyTrial
from determined.common.wire.last_words import NO_TRIAL_CLASS_CODE
from determined.launch._fail import fail
from determined.pytorch import _units
from determined.pytorch._trainer import Trainer, init
from determined.pytorch._trial import PyTorchTrial


def load_class(spec: str) -> type[LegacyTrial]:
    """The class of ``module:Class`` in the working directory. Ends the process with a reason.

    The exit code tells the supervisor that another try would end the same way, but not where a module is
    missing: another agent may have it.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        _refuse(f"--trial takes MODULE:CLASS, e.g. model_def:MyTrial; found {spec!r}")
    here = str(Path.cwd())
    if sys.path[:1] not in ([""], [here]):
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # an import within the user's code: its traceback says more
        fail(f"entrypoint {spec}: there is no module {error.name!r} in the model definition")
    except SyntaxError as error:
        if error.filename is None or not error.filename.startswith(f"{here}/"):
            raise
        traceback.print_exception(error)
        raise SystemExit(NO_TRIAL_CLASS_CODE) from None
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            _refuse(f"entrypoint {spec}: {module} has no class {part}{hint}")
        found = getattr(found, part)
    if not _is_trial_class(found):
        _refuse(
            f"entrypoint {spec}: {name} is not a subclass of determined.pytorch.PyTorchTrial or "
            "determined.pytorch.deepspeed.DeepSpeedTrial"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        _refuse(f"entrypoint {spec}: {name} must define {missing}")
    trial_class: type[LegacyTrial] = found
    return trial_class


def _refuse(message: str) -> NoReturn:
    fail(message, NO_TRIAL_CLASS_CODE)


def _is_trial_class(found: Any) -> bool:
    is_class = isinstance(found, type) and issubclass(found, LegacyTrial)
    return is_class and found.trial_controller_class is not None


def run(spec: str) -> None:
    """Train the class until the searcher has no more work for it."""
    info = det.get_cluster_info()
    if info is None or info.task_type != "TRIAL":
        fail(
            f"--trial {spec} works only on the cluster; elsewhere call pytorch.init() and "
            "Trainer.fit() in a script"
        )
    config = det.ExperimentConfig(info.trial._config)
    level = logging.DEBUG if config.debug_enabled() else logging.INFO
    logging.basicConfig(level=level, format=det.LOG_FORMAT)
    trial_class = load_class(spec)
    with _trainer(trial_class, config) as trainer:
        trainer.fit(
            checkpoint_period=_units.from_config(config.get_min_checkpoint_period()),
            validation_period=_units.from_config(config.get_min_validation_period()),
            reporting_period=_units.Batch(config.scheduling_unit()),
            checkpoint_policy=config.get("checkpoint_policy") or "best",
            latest_checkpoint=info.latest_checkpoint,
            step_zero_validation=bool(config.get("perform_initial_validation")),
            profiling_enabled=config.profiling_enabled(),
        )


@contextlib.contextmanager
def _trainer(trial_class: type[LegacyTrial], config: det.ExperimentConfig) -> Iterator[Trainer]:
    """A Trainer with an object of the class."""
    if issubclass(trial_class, PyTorchTrial):
        optimizations = config.get_optimizations_config()
        frequency = int(optimizations.get("aggregation_frequency") or 1)
        with init(aggregation_frequency=frequency) as context:
            yield Trainer(trial_class(context), context)
        return
    # The trial's class needs the package, so the package is installed.
    from determined.pytorch import deepspeed

    make: Any = trial_class
    with deepspeed.init() as deepspeed_context:
        yield deepspeed.Trainer(make(deepspeed_context), deepspeed_context)


if __name__ == "__main__":  # one of several processes
    run(sys.argv[1])
