"""Sizes as configurations write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


def size_in_bytes(size: int | str) -> int:
    """The bytes of ``4294967296``, ``"4G"`` or ``"1.5 GiB"``. Raises ValueError."""
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*(\d*\.?\d+)\s*([kmgtp]?)(?:i?b)?\s*", size.lower())
    if found is None:
        raise ValueError(f"expected a size such as 4294967296, '4G' or '1.5GiB', found {size!r}")
    return int(float(found[1]) * _UNITS[found[2]])
