"""Turning plain YAML words into values.

Booleans are those of YAML 1.1 (``yes``, ``off``), as configurations for Go's and PyYAML's parsers expect.
Numbers are those of YAML 1.2: ``1e-3`` is a number, ``12:30`` and ``2024-01-01`` are text. A word that
could mean two numbers (``010``), or a number that JSON cannot hold, is refused.
"""

import math
import re
from typing import Any

from yaml.resolver import BaseResolver

_BOOLEANS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_INT = r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)"
_FLOAT = (
    r"[-+]?(?:(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_BOOL = "|".join(f"{word}|{word.capitalize()}|{word.upper()}" for word in _BOOLEANS)
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
INT64 = range(-(2**63), 2**63)


class ScalarError(ValueError):
    """A value cannot be read or stored; the text has the reason and a valid form."""


class ConfigResolver(BaseResolver):
    """Decides the tag of an untagged scalar."""


for _tag, _pattern, _first in (
    ("bool", _BOOL, "yYnNtTfFoO"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", "<<", "<"),
):
    ConfigResolver.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )


def construct(tag: str, text: str) -> Any:
    """The value of a scalar; ``tag`` without its ``tag:yaml.org,2002:`` prefix.

    Raises:
        ScalarError: the tag is unknown, the text does not fit the tag, or JSON cannot hold the value.
    """
    if tag in ("str", "merge"):
        return keepable(_paired(text))
    if tag == "null":
        return None
    if tag == "bool":
        if text.lower() not in _BOOLEANS:
            raise ScalarError(f"{text!r} is neither true nor false")
        return _BOOLEANS[text.lower()]
    if tag == "int":
        return keepable(_integer(text))
    if tag == "float":
        return keepable(_number(text))
    raise ScalarError(f"the YAML tag {tag!r} is not supported")


def keepable(value: Any) -> Any:
    """Return a scalar unchanged if JSON and the database can hold it.

    Raises:
        ScalarError: otherwise (NaN, infinities, integers beyond 64 bits, NUL, half a surrogate pair).
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if value not in INT64:
            raise ScalarError(f"{value} does not fit into 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ScalarError("infinite and undefined numbers cannot be stored in a configuration")
    elif isinstance(value, str):
        if "\0" in value:
            raise ScalarError("the NUL character cannot be stored in a configuration")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ScalarError(
                "the text contains half of a surrogate pair, which is not valid Unicode"
            )
    else:
        raise ScalarError(
            f"a {type(value).__name__} is not plain data; "
            "use text, numbers, booleans, null, lists and mappings"
        )
    return value


def _paired(text: str) -> str:
    r"""Joins two escapes (``\ud83d\ude00``) that stand for one character, which YAML's parser does not."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _integer(text: str) -> int:
    if _LEADING_ZERO.fullmatch(text):
        bare = text.replace("_", "").lstrip("+-0") or "0"
        raise ScalarError(
            f"{text} could be octal or decimal; write 0o{bare}, {bare}, or '{text}' for text"
        )
    try:
        return int(text.replace("_", ""), 0)
    except ValueError:
        raise ScalarError(f"{text!r} is not an integer") from None


def _number(text: str) -> float:
    try:
        return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        raise ScalarError(
            "infinite and undefined numbers cannot be stored in a configuration"
            if text.lower().lstrip("+-") in (".inf", ".nan")
            else f"{text!r} is not a number"
        ) from None
