"""What an API server can do, by its release."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Features:
    """``gates``: pods with scheduling gates; ``suspend``: suspended Jobs; ``waits_for_end``: a Job that makes
    no second pod while the first one still ends."""

    gates: bool = False
    suspend: bool = False
    waits_for_end: bool = False

    @classmethod
    def of(cls, version: str) -> Features:
        """Those of a release such as ``1.29`` or ``v1.20.5+k3s1`` that are on unless somebody switched them
        off. Raises ValueError."""
        found = re.match(r"v?(\d+)\.(\d+)", version)
        if found is None:
            raise ValueError(f"expected the release of Kubernetes, such as 1.29, found {version!r}")
        release = (int(found[1]), int(found[2]))
        return cls(release >= (1, 27), release >= (1, 22), release >= (1, 29))
