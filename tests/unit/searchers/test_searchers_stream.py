"""The random stream is NumPy's legacy one, word for word."""

from __future__ import annotations

import json
import uuid

import pytest

from determined_searchers import SearcherError
from determined_searchers.stream import RandomStream

SEEDS = [0, 1, 42, 2**31 - 1, 2**32 - 1]


def test_known_words() -> None:
    # The reference implementation's first outputs for init_genrand(5489), its default seed.
    stream = RandomStream(5489)
    assert [stream.word() for _ in range(3)] == [3499211612, 581869302, 3890346734]


def test_known_doubles() -> None:
    stream = RandomStream(0)
    assert stream.uniform(0.0, 1.0) == 0.5488135039273248
    assert stream.uniform(0.0, 1.0) == 0.7151893663724195


def test_known_request_ids_and_trial_seeds() -> None:
    stream = RandomStream(0)
    assert stream.request_id() == "ac0a7f8c-2faa-4497-b5a6-16b7c0cc21d8"
    assert stream.trial_seed() == 441365315
    stream = RandomStream(42)
    assert stream.request_id() == "66dce15f-b33d-4acb-9c03-62f30e95f52e"
    assert stream.trial_seed() == 996406378


@pytest.mark.parametrize("seed", SEEDS)
def test_same_numbers_as_numpy(seed: int) -> None:
    numpy = pytest.importorskip("numpy")
    ours, theirs = RandomStream(seed), numpy.random.RandomState(seed)
    for _ in range(300):
        assert ours.uniform(-2.0, 3.5) == theirs.uniform(-2.0, 3.5)
        assert ours.below(7) == theirs.randint(0, 7)
        assert ours.limit(2**32 - 1) == theirs.randint(0, 2**32)
        assert ours.limit(10**12) == theirs.randint(0, 10**12 + 1)
        assert ours.request_id() == str(uuid.UUID(bytes=theirs.bytes(16), version=4))
        assert ours.trial_seed() == theirs.randint(0, 2**31)


def test_state_is_numpys() -> None:
    numpy = pytest.importorskip("numpy")
    ours, theirs = RandomStream(3), numpy.random.RandomState(3)
    for _ in range(1000):
        ours.word()
        theirs.randint(0, 2**32)
    _, key, pos, *_ = theirs.get_state()
    assert ours.state() == {"key": [int(word) for word in key], "pos": pos}


def test_a_limit_of_zero_draws_nothing() -> None:
    stream, other = RandomStream(5), RandomStream(5)
    assert stream.limit(0) == 0
    assert stream.below(1) == 0
    assert stream.word() == other.word()


def test_limit_includes_both_ends() -> None:
    stream = RandomStream(5)
    assert {stream.limit(4) for _ in range(200)} == {0, 1, 2, 3, 4}


def test_state_goes_on_where_it_was() -> None:
    stream = RandomStream(9)
    for _ in range(700):
        stream.word()
    other = RandomStream(0)
    other.load(json.loads(json.dumps(stream.state())))
    assert [stream.word() for _ in range(1300)] == [other.word() for _ in range(1300)]
    assert other.state() == stream.state()


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "1", True, None])
def test_seeds_that_are_none(seed: object) -> None:
    with pytest.raises(SearcherError, match="experiment_seed"):
        RandomStream(seed)  # type: ignore[arg-type]
