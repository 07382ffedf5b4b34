"""The search's random numbers: NumPy's legacy ``RandomState`` stream, without NumPy.

One stream per search, seeded with the experiment seed, so that a search recorded elsewhere under
the same seed draws the same hyperparameters, request ids and trial seeds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from determined_searchers.errors import SearcherError

_WORDS = 624
_MASK32 = 0xFFFFFFFF
# A UUID's variant is two bits of one hexadecimal digit.
_VARIANT = {f"{digit:x}": "89ab"[digit & 3] for digit in range(16)}


class RandomStream:
    """MT19937 seeded by its reference ``init_genrand`` with a uint32 (Matsumoto and Nishimura 1998).

    CPython's generator is the same twister but seeds itself in another way, so the key is computed
    here and put into it.
    """

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _MASK32:
            raise SearcherError(
                f"reproducibility.experiment_seed: {seed!r} is not a whole number from 0 to "
                f"{_MASK32}"
            )
        key = [seed]
        for i in range(1, _WORDS):
            key.append((1812433253 * (key[-1] ^ (key[-1] >> 30)) + i) & _MASK32)
        self._random = random.Random()
        self._bits = self._random.getrandbits
        self._random.setstate((3, (*key, _WORDS), None))

    def word(self) -> int:
        """The next 32 bits."""
        return self._bits(32)

    def uniform(self, low: float, high: float) -> float:
        """A double in [low, high): two words, 53 bits."""
        return low + (high - low) * self._random.random()

    def limit(self, high: int) -> int:
        """A whole number in [0, high], ends included; ``high`` = 0 draws nothing.

        Masked rejection: words (two, the high one first, above 2^32-1) are cut to the bits that
        ``high`` needs, and drawn again while too large.
        """
        if high == 0:
            return 0
        mask = (1 << high.bit_length()) - 1
        while True:
            bits = self._bits(32)
            if high > _MASK32:
                bits = (bits << 32) | self.word()
            if bits & mask <= high:
                return bits & mask

    def below(self, count: int) -> int:
        """A whole number in [0, count)."""
        return self.limit(count - 1)

    def request_id(self) -> str:
        """A version 4 UUID from four words, each laid down little-endian."""
        words = self._bits(128)  # the first word drawn is the lowest
        digits = words.to_bytes(16, "little").hex()
        return (
            f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-"
            f"{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"
        )

    def trial_seed(self) -> int:
        """A trial's seed, in [0, 2^31-1]."""
        return self._bits(32) & 0x7FFFFFFF  # limit(2^31-1), which never draws again

    def state(self) -> dict[str, Any]:
        """``{"key": 624 words, "pos": next word}``, as ``RandomState.get_state`` has them."""
        words = self._random.getstate()[1]
        return {"key": list(words[:-1]), "pos": words[-1]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Return to the position at which :meth:`state` was taken."""
        self._random.setstate((3, (*state["key"], state["pos"]), None))
