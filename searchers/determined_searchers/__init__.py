"""Hyperparameter searches as pure state machines: they decide which trial trains next, and for how long.

    searcher = create_searcher(config)
    operations = searcher.initial_operations()
    operations = searcher.handle(event)  # for each event, in order
    saved = searcher.snapshot()          # JSON; restore_searcher(config, saved) goes on

:func:`simulate` runs a whole search in memory. A new search implements :class:`SearchMethod`.
"""

from determined_searchers.errors import SearcherError
from determined_searchers.events import (
    Event,
    ExitReason,
    MetricMissing,
    TrialClosed,
    TrialCreated,
    TrialExitedEarly,
    TrialProgress,
    TrialReported,
    ValidationCompleted,
    event_from_json,
)
from determined_searchers.method import SearchContext, SearchMethod
from determined_searchers.operations import (
    Close,
    Create,
    Operation,
    SetProgress,
    Shutdown,
    Stop,
    ValidateAfter,
    operation_from_json,
)
from determined_searchers.searcher import Searcher, create_searcher, restore_searcher
from determined_searchers.settings import Form
from determined_searchers.simulation import SimulatedTrial, SimulationResult, simulate

__all__ = [
    "Close",
    "Create",
    "Event",
    "ExitReason",
    "Form",
    "MetricMissing",
    "Operation",
    "SearchContext",
    "SearchMethod",
    "Searcher",
    "SearcherError",
    "SetProgress",
    "Shutdown",
    "SimulatedTrial",
    "SimulationResult",
    "Stop",
    "TrialClosed",
    "TrialCreated",
    "TrialExitedEarly",
    "TrialProgress",
    "TrialReported",
    "ValidateAfter",
    "ValidationCompleted",
    "create_searcher",
    "event_from_json",
    "operation_from_json",
    "restore_searcher",
    "simulate",
]
