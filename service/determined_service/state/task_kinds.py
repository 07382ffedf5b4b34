"""Names of kinds of task, as in ``tasks.kind``; those of commands, notebooks, shells and TensorBoards are in
:class:`determined.common.wire.kinds.TaskKind`."""

from __future__ import annotations

TRIAL = "TRIAL"
CHECKPOINT_GC = "CHECKPOINT_GC"
GENERIC = "GENERIC"

NOTEBOOK_MARK = "files_deletion"
"""In ``tasks.data`` of a notebook: the deletion that its files go with."""
