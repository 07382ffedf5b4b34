"""Custom searchers: a search method of your own, on your machine or in an experiment.

Write a :class:`SearchMethod` and give it to a runner::

    runner = LocalSearchRunner(MyMethod(), searcher_dir=Path("state"))
    runner.run("config.yaml", model_dir="model")  # searcher.name: custom

:class:`LocalSearchRunner` runs it on this machine and keeps its state in a directory.
:class:`RemoteSearchRunner` runs it in an experiment and keeps its state in checkpoints. A runner that is
killed and started again continues its search.
"""

from determined.searcher._local import LocalSearchRunner
from determined.searcher._method import SearchMethod
from determined.searcher._operations import (
    Close,
    Create,
    Operation,
    Progress,
    Shutdown,
    ValidateAfter,
)
from determined.searcher._remote import RemoteSearchRunner
from determined.searcher._runner import SearchRunner
from determined.searcher._state import ExitedReason, SearcherState

__all__ = [
    "Close",
    "Create",
    "ExitedReason",
    "LocalSearchRunner",
    "Operation",
    "Progress",
    "RemoteSearchRunner",
    "SearchMethod",
    "SearchRunner",
    "SearcherState",
    "Shutdown",
    "ValidateAfter",
]
