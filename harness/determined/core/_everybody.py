"""Work that all workers do together: if it fails in one worker, it fails in all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from determined import errors

T = TypeVar("T")


def everybody(
    allgather: Callable[[Any], list[Any]], work: Callable[[], T], who: str = "rank"
) -> list[T]:
    """Run ``work`` in every worker and return all results, in the order of ranks.

    If ``work`` fails in one worker, all workers raise. That worker raises the exception itself, the others
    an errors.StorageError of the same kind or an errors.WorkerError that names ``who`` and the rank.
    """
    mine: T | None = None
    error: BaseException | None = None
    try:
        mine = work()
    # Who calls sys.exit() can still tell the others, who would wait until its process is gone.
    except (Exception, SystemExit) as raised:
        error = raised
    # By name: a class of the script's own may not be one that can be pickled.
    failure = None if error is None else (type(error).__name__, str(error))
    answers = allgather((failure, mine))
    if error is not None:
        raise error
    for rank, (theirs, _) in enumerate(answers):
        if theirs is not None:
            kind, message = theirs
            raise _theirs(kind, message, f"{who} {rank}")
    return [answer for _, answer in answers]


def _theirs(kind: str, message: str, whose: str) -> Exception:
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.StorageError):
        return known(f"{whose}: {message}")
    return errors.WorkerError(f"{whose}: {kind}: {message}")
