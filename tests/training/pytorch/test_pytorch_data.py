"""Samplers, the data loader, and what batches are."""

from __future__ import annotations

import itertools
import re
from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset

from determined import pytorch
from determined.pytorch import _device, samplers
from determined.pytorch._data import EndlessBatches

BATCHES = [[0, 1], [2, 3], [4]]


def batches() -> Any:
    return BatchSampler(SequentialSampler(range(5)), 2, drop_last=False)


def test_repeat() -> None:
    repeated = samplers.RepeatBatchSampler(batches())
    assert len(repeated) == 3
    assert list(itertools.islice(repeated, 7)) == [*BATCHES, *BATCHES, BATCHES[0]]
    assert list(itertools.islice(samplers.RepeatSampler(SequentialSampler(range(2))), 5)) == [
        0, 1, 0, 1, 0,
    ]  # fmt: skip
    assert list(samplers.RepeatSampler(SequentialSampler([]))) == []


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_shares_together_have_every_batch(workers: int) -> None:
    shares = [samplers.DistributedBatchSampler(batches(), workers, rank) for rank in range(workers)]
    assert sorted(batch for share in shares for batch in share) == BATCHES
    assert [len(share) for share in shares] == [len(list(share)) for share in shares]
    indices = samplers.DistributedSampler(SequentialSampler(range(5)), 2, 1)
    assert list(indices) == [1, 3]


def test_a_rank_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, found 2"):
        samplers.DistributedSampler(SequentialSampler(range(5)), 2, 2)


def test_skip_shortens_the_first_pass() -> None:
    skipping = samplers.SkipBatchSampler(batches(), 2)
    assert [len(skipping), list(skipping), list(skipping)] == [3, BATCHES[2:], BATCHES]
    assert list(samplers.SkipSampler(SequentialSampler(range(3)), 1)) == [1, 2]


def test_shuffles_can_be_reproduced() -> None:
    def shuffle(seed: int) -> Any:
        return samplers.ReproducibleShuffleSampler(SequentialSampler(range(50)), seed)

    one, same, other = shuffle(1), shuffle(1), shuffle(2)
    first, second = list(one), list(one)
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(other), tuple(range(50))}) == 4
    assert [list(same), list(same)] == [first, second]
    same.set_epoch(0)
    assert list(same) == first
    shuffled = samplers.ReproducibleShuffleBatchSampler(batches(), 0)
    assert sorted(shuffled) == BATCHES


def test_shuffles_have_the_order_of_numpys_legacy_generator() -> None:
    """Determined's order; tests/compat compares with Determined itself."""
    draw = np.random.RandomState(7)
    passes = [draw.permutation(20).tolist() for _ in range(4)]
    shuffle = samplers.ReproducibleShuffleSampler(SequentialSampler(range(20)), 7)
    assert [list(shuffle) for _ in range(4)] == passes
    shuffle.set_epoch(2)  # a resume; backwards, too
    assert [list(shuffle), list(shuffle)] == passes[2:]
    draw = np.random.RandomState(7)
    shuffled = samplers.ReproducibleShuffleBatchSampler(batches(), 7)
    for _ in range(3):
        assert list(shuffled) == [BATCHES[index] for index in draw.permutation(len(BATCHES))]
    with pytest.raises(ValueError, match="between 0 and"):
        samplers.ReproducibleShuffleSampler(SequentialSampler(range(3)), -1)


def test_a_generator_of_64_bits_gives_an_order() -> None:
    generator = torch.Generator().manual_seed(2**40 + 3)
    data = TensorDataset(torch.arange(8))
    loader = pytorch.DataLoader(data, batch_size=8, shuffle=True, generator=generator)
    ((batch,),) = loader.get_data_loader()
    assert batch.tolist() == np.random.RandomState(3).permutation(8).tolist()


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_endless_batches_begin_anywhere(replicas: int) -> None:
    for rank in range(replicas):
        everything = list(itertools.islice(EndlessBatches(batches(), 0, 0, replicas, rank), 12))
        direct = pytorch.adapt_batch_sampler(batches(), True, 0, replicas, rank)
        assert everything == list(itertools.islice(direct, 12))
        for skip in range(8):
            rest = EndlessBatches(batches(), 0, skip, replicas, rank)
            assert list(itertools.islice(rest, 4)) == everything[skip : skip + 4]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_step_has_the_same_records_in_any_number_of_processes(shuffle: bool) -> None:
    """As long as they share a global batch; so a position counted in steps holds for each number."""

    def steps(processes: int, begin: int) -> list[set[int]]:
        data = TensorDataset(torch.arange(24))
        ranks = [
            pytorch.DataLoader(data, batch_size=8 // processes, shuffle=shuffle)._training_loader(
                7, begin, processes, rank
            )
            for rank in range(processes)
        ]
        batches = zip(*(values(rank, 7) for rank in ranks), strict=True)
        return [set().union(*step) for step in batches]

    unbroken = steps(1, 0)
    assert set().union(*unbroken[:3]) == set(range(24))
    for processes in (1, 2, 4):
        for begin in range(4):
            assert steps(processes, begin)[: 7 - begin] == unbroken[begin:]


def loader(**options: Any) -> pytorch.DataLoader:
    dataset = TensorDataset(torch.arange(10))
    return pytorch.DataLoader(dataset, **{"batch_size": 4, **options})


def values(batches: Any, count: int = 3) -> list[list[int]]:
    return [batch.tolist() for (batch,) in itertools.islice(iter(batches), count)]


def test_the_data_loader() -> None:
    assert values(loader()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (len(loader()), len(loader(drop_last=True))) == (3, 2)
    part = loader().get_data_loader(repeat=True, skip=1, num_replicas=2, rank=1)
    assert values(part) == [[0, 1, 2, 3], [8, 9], [4, 5, 6, 7]]
    own = loader(batch_size=1, batch_sampler=batches())
    assert values(own) == BATCHES and len(own) == 3
    shuffled = loader(shuffle=True)
    passes = [[n for batch in values(shuffled) for n in batch] for _ in range(3)]
    assert [sorted(order) for order in passes] == [list(range(10))] * 3
    assert len({tuple(order) for order in passes}) == 3


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_size": None}, "batch_size=None"),
        ({"batch_size": 0}, "positive integer, found 0"),
        ({"batch_sampler": batches()}, "leave out batch_size"),
        ({"sampler": SequentialSampler(range(3)), "shuffle": True}, "leave out shuffle"),
    ],
)
def test_arguments_that_exclude_each_other(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        loader(**options)


def test_streams_are_refused() -> None:
    with pytest.raises(TypeError, match="disable_dataset_reproducibility_checks"):
        pytorch.DataLoader(Stream())


def test_lengths_of_batches() -> None:
    five = torch.zeros(5, 2)
    for batch in (five, five.numpy(), (five, 1), [five], {"x": five, "y": 0}, {"a": {"b": five}}):
        assert pytorch.data_length(batch) == 5
    assert pytorch.data_length({"scale": torch.tensor(0.5), "x": five}) == 5
    assert pytorch.data_length(["one", "two", "three"]) == 3
    with pytest.raises(TypeError, match="get_batch_length"):
        pytorch.data_length("text")
    nothing: tuple[Any, ...] = ({}, [], ())
    for empty in nothing:
        with pytest.raises(ValueError, match=f"an empty {type(empty).__name__}"):
            pytorch.data_length(empty)


class Encoding(UserDict[str, Any]):
    """Moves itself, like Hugging Face's BatchEncoding."""

    moved_to: Any = None

    def to(self, device: torch.device) -> Encoding:
        self.moved_to = device
        return self


def test_batches_are_moved_to_the_device(caplog: pytest.LogCaptureFixture) -> None:
    device = torch.device("cpu")
    own, names = Encoding(x=torch.ones(1)), np.array(["a", "b"])
    warned: set[type] = set()
    moved = pytorch.to_device([own, {"names": names, "more": names}, np.ones(2)], device, warned)
    assert moved[0] is own and own.moved_to == device
    assert moved[1]["names"] is names
    assert isinstance(moved[2], torch.Tensor)
    assert caplog.messages == ["values of type ndarray are not moved to cpu"]
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert pytorch.to_device(packed, device) is packed


def test_each_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert _device.of_process(3, gpus=0) == torch.device("cpu")
    assert not current
    assert _device.of_process(1, gpus=2) == torch.device("cuda", 1)
    assert current == [torch.device("cuda", 1)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    wanted = re.escape(
        "process 2 of this machine (counted from 0) has no GPU to itself: torch sees 2"
    )
    with pytest.raises(RuntimeError, match=wanted + r" \(CUDA_VISIBLE_DEVICES=0,1\)"):
        _device.of_process(2, gpus=2)


def test_to_device(caplog: pytest.LogCaptureFixture) -> None:
    pair = namedtuple("pair", "x y")
    warned: set[type] = set()
    data = {"a": [np.ones(2), torch.ones(1)], "b": pair(torch.zeros(1), "text"), "c": (1, "x")}
    moved = pytorch.to_device(data, torch.device("cpu"), warned)
    assert torch.equal(moved["a"][0], torch.ones(2, dtype=torch.float64))
    assert type(moved["b"]) is pair and moved["b"].y == "text"
    assert moved["c"] == (1, "x")
    assert warned == {int, str}
    assert len(caplog.records) == 2
