"""Finding the trial class of an entrypoint."""

from __future__ import annotations

from typing import Any

from determined._trial import LegacyTrial


def trial_class_from_entrypoint(entrypoint_spec: str) -> type[LegacyTrial]:
    """Import ``module:Class`` from the working directory. Ends the process with a reason if that fails."""
    from determined.pytorch._run import load_class

    return load_class(entrypoint_spec)


def get_trial_controller_class(trial_class: type[LegacyTrial]) -> Any:
    """The controller that runs trials of ``trial_class``. Raises errors.InvalidModelException if it has
    none.
    """
    from determined import errors

    if getattr(trial_class, "trial_controller_class", None) is None:
        raise errors.InvalidModelException(
            f"{trial_class.__name__} is not a trial class; subclass one of a framework, such "
            "as pytorch.PyTorchTrial"
        )
    return trial_class.trial_controller_class
