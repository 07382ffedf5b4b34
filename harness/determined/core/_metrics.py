"""Freezing reported metrics: a cheap copy of plain values that later mutation cannot change."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

logger = logging.getLogger("determined.core")

_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1
_MAX_DEPTH = 32


class Unsupported(Exception):
    """A value that JSON cannot hold: not a number, text, list or mapping."""


def _text(value: str) -> str:
    """Text that UTF-8 and Postgres can hold: no lone surrogates, no NUL."""
    if not value.isascii():
        value = value.encode("utf-8", "backslashreplace").decode()
    return value.replace("\x00", "\\u0000") if "\x00" in value else value


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


class Freezer:
    """Copies metrics into dicts, lists and scalars; warns once per key that it has to drop.

    NaN and infinities become ``"NaN"``, ``"Infinity"``, ``"-Infinity"``, which the service stores as such.
    Scalars and arrays of numpy, torch and similar libraries are recognised by their ``item()`` and
    ``tolist()``, so no such library is imported here. Other numbers (Decimal, Fraction) become the nearest
    float, a masked value NaN.
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def freeze(self, metrics: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """(frozen metrics, number of values in them); keys that cannot be stored are left out.

        Raises ValueError for None, which usually comes from a function without a return.
        """
        frozen: dict[str, Any] = {}
        size = len(metrics)
        for key, value in metrics.items():
            # The common case without a call: this runs inside the training loop.
            if type(value) is float and value - value == 0.0 and type(key) is str:
                frozen[key] = value
                continue
            if value is None:
                raise ValueError(
                    f"metric {key!r} is None; does the function that computes it return a value?"
                )
            try:
                converted, leaves = _convert(value, 0)
            except Unsupported as error:
                self._warn(str(key), error)
                continue
            frozen[_text(str(key))] = converted
            size += leaves - 1
        return frozen, size

    def _warn(self, key: str, error: Unsupported) -> None:
        if key not in self._warned:
            self._warned.add(key)
            logger.warning("metric %r is not reported: %s", key, error)


def plain(value: Any) -> Any:
    """A copy of ``value`` in the types of JSON, converted as metrics are; raises Unsupported."""
    return _convert(value, 0)[0]


def _convert(value: Any, depth: int) -> tuple[Any, int]:
    """(plain value, number of leaves)."""
    if value is None or isinstance(value, bool):
        return value, 1
    if isinstance(value, float):
        return _float(float(value)), 1
    if isinstance(value, int):
        # JSON of the service holds 64 bits; beyond, the nearest float is better than nothing.
        if _MIN_INT <= value <= _MAX_INT:
            return int(value), 1
        try:
            return float(value), 1
        except OverflowError:
            return ("Infinity" if value > 0 else "-Infinity"), 1
    if isinstance(value, str):
        return _text(str(value)), 1
    if depth >= _MAX_DEPTH:
        raise Unsupported(f"it is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        return _convert_all(value, depth)
    if isinstance(value, list | tuple):
        pairs = [_convert(item, depth + 1) for item in value]
        return [item for item, _ in pairs], sum(leaves for _, leaves in pairs) or 1
    return _convert_foreign(value, depth)


def _convert_all(value: Mapping[Any, Any], depth: int) -> tuple[Any, int]:
    plain, total = {}, 0
    for key, item in value.items():
        plain[_text(str(key))], leaves = _convert(item, depth + 1)
        total += leaves
    return plain, total or 1


def _convert_foreign(value: Any, depth: int) -> tuple[Any, int]:
    scalar = getattr(value, "ndim", 0) == 0
    if scalar and _is_masked(value):
        return "NaN", 1
    for name in ("item", "tolist") if scalar else ("tolist",):
        method = getattr(value, name, None)
        if callable(method):
            try:
                found = method()
                if type(found) is type(value):  # numpy's longdouble
                    continue
                return _convert(found, depth + 1)
            except (TypeError, ValueError, RuntimeError) as error:
                raise Unsupported(f"{type(value).__name__}.{name}() failed: {error}") from error
    if isinstance(value, Decimal | Real):
        return _real(value), 1
    raise Unsupported(f"its type, {type(value).__name__}, is not a number, text, list or dict")


def _is_masked(scalar: Any) -> bool:
    """True for numpy's masked value (the mean of nothing, for example), whose ``item()`` is 0.0."""
    mask = getattr(scalar, "mask", None)
    return getattr(mask, "shape", None) == () and bool(mask)


def _real(value: Any) -> float | str:
    try:
        return _float(float(value))
    except OverflowError:
        return "-Infinity" if str(value).lstrip().startswith("-") else "Infinity"
    except ValueError as error:
        raise Unsupported(str(error)) from error
