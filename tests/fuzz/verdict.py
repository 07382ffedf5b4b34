"""The rules that an answer must not break."""

from __future__ import annotations

import re

# Texts of SQL statements and of database libraries; no value in a request looks like them.
SQL = re.compile(
    r"\[SQL:|\[parameters:|sqlalche\.me|psycopg|sqlalchemy|Traceback \(most recent"
    r"|\bSELECT\b.+\bFROM\b|\bINSERT INTO\b|\bDELETE FROM\b|\bUPDATE \w+ SET\b|\bLINE 1:",
    re.DOTALL,
)


def complaint(status: int, answer: str) -> str | None:
    """The faults of an answer; None: no fault."""
    if status == 500 or status not in range(100, 600):
        return f"{status}: {answer[:300]}"
    found = SQL.search(answer)
    if found is not None:
        return f"{status} with {found[0][:100]!r}: {answer[:300]}"
    return None
