"""Names of the kinds of task, as in ``tasks.kind``; the classes in ``lifecycle/kinds`` define them."""

from __future__ import annotations

TRIAL = "TRIAL"
CHECKPOINT_GC = "CHECKPOINT_GC"
COMMAND = "COMMAND"
NOTEBOOK = "NOTEBOOK"
SHELL = "SHELL"
TENSORBOARD = "TENSORBOARD"
GENERIC = "GENERIC"

NOTEBOOK_MARK = "files_deletion"
"""In ``tasks.data`` of a notebook: the deletion that its files go with."""
