"""The free space below which `cluster-up`, the service and the doctor call a disk nearly full."""

from __future__ import annotations

LITTLE_BYTES = 2 * 2**30
"""Less than this is worth a word."""
TOO_LITTLE_BYTES = 200 * 2**20
"""Less than this is too little for a new cluster, and soon for any."""
FULL_BYTES = 64 * 2**20
"""With less than this Postgres may have stopped because it could write no more."""


def words(free: int) -> str:
    """``free`` bytes for a person, such as ``9 MiB``."""
    return f"{free / 2**20:.0f} MiB" if free < LITTLE_BYTES else f"{free / 2**30:.1f} GiB"
