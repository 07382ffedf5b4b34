"""Keys by which a block that runs again does nothing twice.

A key is made of the flow run, of what is asked for, and of how many calls of this flow run asked for the
same before. So it stays the same when a task is tried again, when the flow is, and when the process of the
flow was killed and another one runs the flow from its beginning. Equal calls get different keys (and are
equal, so it does not matter which of them gets which).
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from typing import Any
from uuid import UUID, uuid5

from prefect.context import FlowRunContext, TaskRunContext

_lock = threading.Lock()
# By the identity of a flow run's context, which is made anew for each try of the flow: the context, and for
# each content the task runs that asked for it, in their order.
_asked: dict[int, tuple[weakref.ref[Any], dict[str, list[UUID]]]] = {}
_NAMES = UUID("5cb4c1f8-2f3e-4f7b-9d1c-6d1b0b6a7c11")


def digest(*parts: bytes) -> str:
    """SHA-256 of the parts, told apart by their lengths."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()


def of_call(content: str) -> str | None:
    """The key of the call that is running, for ``content``; None: outside of Prefect's runs there is none."""
    task = TaskRunContext.get()
    if task is None:
        return None
    flow = FlowRunContext.get()
    if flow is None or flow.flow_run is None:
        return f"prefect/{task.task_run.id}/{content[:32]}"
    number = _number(flow, content, task.task_run.id)
    return f"prefect/{flow.flow_run.id}/{content[:32]}/{number}"


def as_uuid(key: str) -> UUID:
    """The key as a UUID, for requests that want one."""
    return uuid5(_NAMES, key)


def _number(flow: FlowRunContext, content: str, task_run: UUID) -> int:
    with _lock:
        for one, (context, _) in list(_asked.items()):
            if context() is None:
                del _asked[one]
        known = _asked.setdefault(id(flow), (weakref.ref(flow), {}))[1]
        runs = known.setdefault(content, [])
        if task_run not in runs:
            runs.append(task_run)
        return runs.index(task_run)
