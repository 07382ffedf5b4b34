"""How a traceback begins in a program's output, and what launchers and libraries put before its lines."""

from __future__ import annotations

import re

BEGIN = re.compile(r"\W{0,400}(?:\w{1,40} +){0,2}Traceback \(most recent call last\)")
"""Python's own, that of an exception group ("  + Exception Group Traceback"), rich's in its frame."""

# determined.launch; torch as soon as a process group is there; horovodrun and mpirun, of which some releases
# have a space there; torchrun's --tee.
_RANKS = re.compile(
    r"\[rank=(\d{1,9})\] ?|\[rank(\d{1,9})\]: ?|\[(?:\d{1,9},)?(\d{1,9})\]<std(?:out|err)>:(?: (?=\S|  ))?"
    r"|\[default(\d{1,9})\]:"
)


def without_ranks(line: str) -> tuple[int | None, str]:
    """The rank in front of ``line`` (None: it has none; the innermost, if it has several), and the rest."""
    rank = None
    while line.startswith("[") and (found := _RANKS.match(line)):
        rank, line = int(found[found.lastindex or 0]), line[found.end() :]
    return rank, line
