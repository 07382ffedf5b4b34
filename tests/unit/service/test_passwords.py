"""The stored form of passwords."""

from __future__ import annotations

import argon2
import pytest

from determined_service.base import passwords
from tests.scrypt_passwords import scrypt_of

SENT = passwords.as_sent("Secret123")


def test_only_the_password_matches() -> None:
    kept = passwords.store(SENT)
    assert passwords.matches(SENT, kept)
    assert not passwords.matches("Secret123", kept)
    assert not passwords.matches("", kept)
    assert not passwords.matches(SENT, None)
    assert passwords.store(SENT) != kept  # a separate salt


def test_a_blank_password_is_one() -> None:
    kept = passwords.store(passwords.as_sent(""))
    assert passwords.matches("", kept)
    assert not passwords.matches(SENT, kept)


@pytest.mark.parametrize("kept", ["", "plain", "$argon2id$v=19$m=8", "bcrypt$a$b"])
def test_an_invalid_hash_matches_nothing(kept: str) -> None:
    assert not passwords.matches(SENT, kept)


def test_scrypt_still_matches_and_is_outdated() -> None:
    kept = scrypt_of(SENT)
    assert passwords.matches(SENT, kept)
    assert not passwords.matches("Secret123", kept)
    assert passwords.is_outdated(kept)


def test_other_costs_are_outdated() -> None:
    assert not passwords.is_outdated(passwords.store(SENT))
    cheap = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(SENT)
    assert passwords.matches(SENT, cheap)
    assert passwords.is_outdated(cheap)


def test_a_missing_password_costs_as_much_as_a_wrong_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[argon2.Parameters] = []

    class Watched(argon2.PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> bool:
            assert isinstance(hash, str)
            hashed.append(argon2.extract_parameters(hash))
            return super().verify(hash, password)

    kept = passwords.store(SENT)
    hasher = passwords._HASHER
    watched = Watched(hasher.time_cost, hasher.memory_cost, hasher.parallelism)
    monkeypatch.setattr(passwords, "_HASHER", watched)
    assert not passwords.matches("wrong", kept)
    assert not passwords.matches("wrong", None)
    assert hashed[0] == hashed[1]
    assert hashed[0].memory_cost <= 64 * 1024  # KiB a login
