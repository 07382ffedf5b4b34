"""Display names: no user can pass for another.

Administrators may give any name. The others choose their own within these rules.
"""

from __future__ import annotations

import re
import unicodedata

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import users
from determined_service.base.errors import BadRequest, Conflict

RESERVED = frozenset({"admin", "administrator", "administrators", "admins", "root"})
"""Words that say "administrator", in small letters."""
BUILT_IN = frozenset({"determined"})
"""Users that every cluster has: their names are theirs, also as one word among others."""
# Alphabets with letters that look the same.
_ALIKE = ("LATIN", "CYRILLIC", "GREEK")
_DIGITS = str.maketrans(
    {"0": "o", "1": "l", "3": "e", "5": "s", "|": "l", "!": "i", "@": "a", "$": "s"}
)


def skeleton(name: str) -> str:
    """The form that names share if they look alike: no accents, no capitals, single spaces, letters for
    digits."""
    plain = unicodedata.normalize("NFKD", name).casefold().translate(_DIGITS)
    kept = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return " ".join(kept.split()).replace("i", "l")


def problem_of(name: str) -> str | None:
    """The reason why only an administrator's account may be called ``name``; None: any may."""
    for letter in name:
        if unicodedata.category(letter)[0] == "C" or letter in "\u2028\u2029":
            return f"it holds the invisible character U+{ord(letter):04X}"
    scripts = {
        unicodedata.name(letter, "").partition(" ")[0] for letter in name if letter.isalpha()
    }
    mixed = [script.title() for script in _ALIKE if script in scripts]
    if len(mixed) > 1:
        return f"it mixes {' and '.join(mixed)} letters, which look alike"
    words = re.split(r"[\W_]+", skeleton(name))
    joined = "".join(words)
    for word in sorted(RESERVED | BUILT_IN):
        if skeleton(word) in {*words, joined}:
            return f"{word!r} is what others take for the account of that name"
    return None


async def require_own_name(conn: AsyncConnection, user_id: int, name: str) -> None:
    """Raises BadRequest, or Conflict when another user has a name that looks like ``name``."""
    found = await conn.execute(sa.select(users.c.id, users.c.username, users.c.display_name))
    rows = list(found)
    own = next((row for row in rows if row.id == user_id), None)
    if own is None or name in (own.display_name, ""):
        return
    problem = None if skeleton(name) == skeleton(own.username) else problem_of(name)
    if problem is not None:
        raise BadRequest(
            f"displayName {name!r}: {problem}; choose another one, or ask an administrator"
        )
    wanted = skeleton(name)
    for row in rows:
        taken = {skeleton(row.username), skeleton(row.display_name or row.username)}
        if row.id != user_id and wanted in taken:
            raise Conflict(
                f"displayName {name!r} looks like the name of user {row.username!r}: choose another one"
            )
