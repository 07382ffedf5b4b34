"""Slows down who guesses passwords.

Each wrong password is charged to three accounts, each of which allows a number at once and then one per span
of seconds:

* the user's name with the address that asks: the tightest, and forgiven by a correct password;
* the address: many names from one place;
* the user's name: one name from many places. This limit does not apply to an address from which the user has
logged in before, so strangers elsewhere cannot lock a user out at a known address.

An attempt that would go beyond is refused before its password is looked at, and costs nothing: neither the
time of a hash nor a place in the account. So an account is free again a few seconds after the last attempt
that was let through, however many were refused meanwhile. Names that do not exist are treated like others.

The accounts are in the memory of one process and bounded. With n service processes a guesser has n times the
attempts; a client without a login never causes a write to the database.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from determined_service.base.errors import TooManyRequests
from determined_service.base.networks import network

SIZE = 10_000
"""Entries of each account book; the longest unused goes first."""
AT_ONCE, OF_ADDRESS, OF_NAME = 64, 32, 16
"""Logins that may wait for a hash at the same time: in all, from one address, and as one user. So the right
password of one user keeps nobody else out.
"""
_EVERYBODY = None
SHOWN = 60
"""Characters of a name that are worth repeating."""


@dataclass(frozen=True, slots=True)
class Budget:
    """``burst`` attempts at once, then one in ``every_s`` seconds."""

    burst: int
    every_s: float


PAIR = Budget(burst=5, every_s=10.0)
ADDRESS = Budget(burst=30, every_s=2.0)
NAME = Budget(burst=20, every_s=3.0)


class Accounts:
    """The use that each key has made of ``budget``."""

    def __init__(self, budget: Budget, size: int, clock: Callable[[], float]) -> None:
        self._budget = budget
        self._size = size
        self._clock = clock
        # By key, the time at which all used attempts are restored.
        self._whole_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._whole_at)

    def wait(self, key: Hashable) -> float:
        """Seconds until the key may take one more; 0: now."""
        missing = self._whole_at.get(key, 0.0) - self._clock()
        return max(0.0, missing - (self._budget.burst - 1) * self._budget.every_s)

    def take(self, key: Hashable) -> None:
        now = self._clock()
        self._whole_at[key] = max(self._whole_at.get(key, 0.0), now) + self._budget.every_s
        self._whole_at.move_to_end(key)
        while self._whole_at and (
            len(self._whole_at) > self._size or next(iter(self._whole_at.values())) <= now
        ):
            self._whole_at.popitem(last=False)

    def give_back(self, key: Hashable) -> None:
        if key in self._whole_at:
            self._whole_at[key] -= self._budget.every_s

    def forget(self, key: Hashable) -> None:
        self._whole_at.pop(key, None)


class Attempt:
    """One attempt that was let through; a failure until :meth:`succeeded` is called."""

    def __init__(self) -> None:
        self.is_success = False

    def succeeded(self) -> None:
        """The password was right."""
        self.is_success = True


class LoginThrottle:
    """The accounts of one process. Asked from one event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = SIZE) -> None:
        self._size = size
        self._pairs = Accounts(PAIR, size, clock)
        self._addresses = Accounts(ADDRESS, size, clock)
        self._names = Accounts(NAME, size, clock)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._running: Counter[Hashable] = Counter()

    @contextlib.contextmanager
    def attempt(self, username: str, address: str) -> Iterator[Attempt]:
        """The time in which one password is looked at. ``address``: of the client, as it came.

        Raises TooManyRequests, which says when to try again.
        """
        # Names and addresses of any length cost the same memory.
        place = network(address)
        pair = (_key(username), place)
        wait = self._pairs.wait(pair)
        if wait:
            raise _refused(f"wrong passwords of user {_shown(username)} from {address}", wait)
        wait = self._addresses.wait(place)
        if wait:
            raise _refused(f"failed logins from {address}", wait)
        is_known = pair in self._known
        wait = 0.0 if is_known else self._names.wait(pair[0])
        if wait:
            name = _shown(username)
            raise _refused(
                f"failed logins as user {name}", wait, f", or from where {name} logged in before"
            )
        shares = {_EVERYBODY: AT_ONCE, place: OF_ADDRESS, pair[0]: OF_NAME}
        if any(self._running[key] >= most for key, most in shares.items()):
            raise _refused("logins at once", 1.0)
        taken: list[tuple[Accounts, Hashable]] = [(self._pairs, pair), (self._addresses, place)]
        if not is_known:
            taken.append((self._names, pair[0]))
        for accounts, key in taken:
            accounts.take(key)
        self._running.update(shares.keys())
        made = Attempt()
        try:
            yield made
        finally:
            for key in shares:
                self._running[key] -= 1
                if not self._running[key]:
                    del self._running[key]
            if made.is_success:
                for accounts, key in taken:
                    accounts.give_back(key)
                self._pairs.forget(pair)
                self._remember(pair)

    def _remember(self, pair: tuple[str, str]) -> None:
        self._known[pair] = None
        self._known.move_to_end(pair)
        while len(self._known) > self._size:
            self._known.popitem(last=False)


def _key(username: str) -> str:
    return hashlib.blake2b(username.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _shown(username: str) -> str:
    return repr(username if len(username) <= SHOWN else username[: SHOWN - 1] + "…")


def _refused(what: str, wait_s: float, more: str = "") -> TooManyRequests:
    seconds = max(1, math.ceil(wait_s))
    return TooManyRequests(f"too many {what}: try again in {seconds} s{more}", seconds)
