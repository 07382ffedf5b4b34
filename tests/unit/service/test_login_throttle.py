"""Guessing passwords is slowed down, by user and by address; the right password is still admitted."""

from __future__ import annotations

import contextlib

import pytest

from determined_service.access.throttle import ADDRESS, NAME, OF_NAME, PAIR, LoginThrottle
from determined_service.base.errors import TooManyRequests
from determined_service.base.networks import is_loopback, network

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock) -> LoginThrottle:
    return LoginThrottle(clock, size=100)


def fail(throttle: LoginThrottle, name: str, address: str) -> None:
    with throttle.attempt(name, address):
        pass


def log_in(throttle: LoginThrottle, name: str, address: str) -> None:
    with throttle.attempt(name, address) as attempt:
        attempt.succeeded()


def test_after_a_few_wrong_passwords_it_takes_time(throttle: LoginThrottle, clock: Clock) -> None:
    for _ in range(PAIR.burst):
        fail(throttle, "alice", HERE)
    with pytest.raises(TooManyRequests) as refused:
        fail(throttle, "alice", HERE)
    assert refused.value.message == (
        "too many wrong passwords of user 'alice' from 192.0.2.1: try again in 10 s"
    )
    assert refused.value.retry_after_s == 10
    # Continued attempts do not make the wait longer.
    for _ in range(1000):
        with pytest.raises(TooManyRequests):
            fail(throttle, "alice", HERE)
    clock.now += PAIR.every_s
    log_in(throttle, "alice", HERE)
    # The password was right: as if nothing had been.
    for _ in range(PAIR.burst):
        fail(throttle, "alice", HERE)


def test_a_hundred_guesses_take_their_time(throttle: LoginThrottle, clock: Clock) -> None:
    began, made = clock.now, 0
    while made < 100:
        try:
            fail(throttle, "alice", HERE)
            made += 1
        except TooManyRequests as refused:
            clock.now += refused.retry_after_s
    assert clock.now - began >= (100 - PAIR.burst) * PAIR.every_s


def test_many_names_from_one_address(throttle: LoginThrottle) -> None:
    for number in range(ADDRESS.burst):
        fail(throttle, f"user{number}", HERE)
    with pytest.raises(TooManyRequests, match=r"^too many failed logins from 192\.0\.2\.1: try"):
        fail(throttle, "another", HERE)
    log_in(throttle, "another", THERE)


def test_one_name_from_many_addresses_and_its_owner_gets_in(
    throttle: LoginThrottle, clock: Clock
) -> None:
    log_in(throttle, "alice", HERE)
    for number in range(NAME.burst):
        fail(throttle, "alice", f"198.51.100.{number}")
    with pytest.raises(TooManyRequests, match="or from where 'alice' logged in before"):
        fail(throttle, "alice", THERE)
    log_in(throttle, "alice", HERE)
    log_in(throttle, "bob", THERE)
    clock.now += NAME.every_s
    log_in(throttle, "alice", THERE)


def test_right_passwords_cost_nothing(throttle: LoginThrottle) -> None:
    for number in range(1000):
        log_in(throttle, f"user{number % 3}", HERE)


def test_the_memory_is_bounded(throttle: LoginThrottle, clock: Clock) -> None:
    for number in range(1000):
        fail(throttle, f"{number}" * 1000, f"10.0.{number // 250}.{number % 250}")
        log_in(throttle, f"{number}", f"10.0.{number // 250}.{number % 250}")
    books = (throttle._pairs, throttle._addresses, throttle._names)
    assert all(90 < len(book) <= 100 for book in books)
    assert len(throttle._known) == 100
    # An entry whose attempts are restored is removed, too.
    clock.now += 3600
    fail(throttle, "alice", HERE)
    assert [len(book) for book in books] == [1, 1, 1]


def test_names_are_shown_as_text_and_cut(throttle: LoginThrottle) -> None:
    name = "\x1b[31m" + "a" * 100_000
    for _ in range(PAIR.burst):
        fail(throttle, name, HERE)
    with pytest.raises(TooManyRequests) as refused:
        fail(throttle, name, HERE)
    assert "\x1b" not in refused.value.message
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_one_machine_has_one_network(address: str, found: str) -> None:
    assert network(address) == found


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("det.example", False),
        ("", False),
    ],
)
def test_loopback(address: str, is_one: bool) -> None:
    assert is_loopback(address) is is_one


def test_logins_of_one_user_or_address_leave_places_for_others() -> None:
    throttle = LoginThrottle()
    with contextlib.ExitStack() as running:
        for number in range(OF_NAME):
            running.enter_context(throttle.attempt("alice", f"10.0.{number}.1"))
        with pytest.raises(TooManyRequests, match="too many logins at once"):
            running.enter_context(throttle.attempt("alice", "10.1.0.1"))
        running.enter_context(throttle.attempt("bob", "10.1.0.1"))
    with throttle.attempt("alice", "10.1.0.1"):
        pass
