"""Code shared by the trial classes of every framework."""

from __future__ import annotations

import abc
from typing import Any

from determined._trial_context import TrialContext


class LegacyTrial(metaclass=abc.ABCMeta):  # noqa: B024 - frameworks add the methods
    """Base of the trial classes of the frameworks, such as :class:`determined.pytorch.PyTorchTrial`.

    ``trial_context_class`` is the class of the context that ``__init__`` gets. ``trial_controller_class``
    runs trials of this class.
    """

    trial_context_class: type[TrialContext] = TrialContext
    trial_controller_class: Any = None

    def __init__(self, context: Any) -> None:
        self.context = context
