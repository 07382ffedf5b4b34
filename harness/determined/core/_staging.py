"""Copies of states in memory, so that a training may change the originals while the copies are stored.

A copy is made as ``torch.save`` would read the state: its structure is pickled at once, and each storage of
a tensor is copied once, however many tensors look at it. What is unpickled later, with the copied storages,
is therefore saved to the same file as the state itself would have been (tensors of an accelerator as those of
the CPU).
"""

from __future__ import annotations

import io
import logging
import mmap
import pickle
from collections.abc import Callable
from typing import Any

import torch

from determined.core._memory import available_bytes

logger = logging.getLogger("determined.core")

ALIGNMENT = 64
SHARE = 0.8
"""Of the available memory that copies may take."""


class Copy:
    """A state as it was at one moment."""

    def __init__(
        self, pickled: bytes, storages: list[torch.UntypedStorage], ready: Callable[[], None]
    ) -> None:
        self._pickled = pickled
        self._storages = storages
        self._ready = ready

    def state(self) -> Any:
        """The state, with all tensors on the CPU. Waits until the copies are made; for any thread."""
        self._ready()
        return _Unpickler(io.BytesIO(self._pickled), self._storages).load()


class StateMemory:
    """Memory for the copy of one state at a time.

    It is kept for the next copy, because fresh memory costs more time than the copying. It is as large as the
    largest state so far, and pinned once a state has lain on a CUDA device.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._pinned: int | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @property
    def bytes(self) -> int:
        """The memory that is held."""
        return len(self._memory) if self._memory is not None else 0

    def copy(self, state: Any, processes: int = 1) -> Copy | None:
        """A copy of ``state``, or None if the memory does not suffice. The last copy ends by this.

        When this returns, the training may change the state: tensors of the CPU are copied; kernels that a
        CUDA device is given from now on run after it has copied its tensors. ``processes``: of this machine,
        that do the same at the same time. Raises what pickling the state raises.
        """
        pickled, storages = _pickled(state)
        starts, end = [], 0
        for storage in storages:
            starts.append(end)
            end += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        if not self._reserve(end, processes):
            return None
        on_cuda = any(storage.device.type == "cuda" for storage in storages)
        if on_cuda:
            self._pin()
        copies = [
            self._slice(start, storage.nbytes())
            for start, storage in zip(starts, storages, strict=True)
        ]
        ready = self._fill(copies, storages)
        return Copy(pickled, [one.untyped_storage() for one in copies], ready)

    def close(self) -> None:
        """Give the memory back; no copy is used any more."""
        if self._pinned is not None:
            torch.cuda.cudart().cudaHostUnregister(self._pinned)
        self._pinned = self._memory = None

    def _reserve(self, size: int, processes: int) -> bool:
        if size <= self.bytes:
            return True
        # What is held is given back first.
        room = available_bytes() * SHARE / processes + self.bytes
        if size > room:
            logger.warning(
                "the copy of this state takes %d MiB of memory, and %d MiB may be taken, so the training "
                "waits until the checkpoint is stored",
                size >> 20,
                int(room) >> 20,
            )
            return False
        self.close()
        # Shared with forked children (a data loader's workers), so that the next copy does not double it.
        self._memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        return True

    def _pin(self) -> None:
        if self._pinned is not None or self._memory is None:
            return
        start = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        # A CUDA device copies to pinned memory while the process goes on; to other memory it waits.
        result = torch.cuda.cudart().cudaHostRegister(start, len(self._memory), 0)
        if int(result) == 0:
            self._pinned = start
        else:
            logger.warning("the memory for copies of the state cannot be pinned: %s", result)

    def _slice(self, start: int, size: int) -> torch.Tensor:
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        assert self._memory is not None
        return torch.frombuffer(self._memory, dtype=torch.uint8, offset=start, count=size)

    def _fill(
        self, copies: list[torch.Tensor], storages: list[torch.UntypedStorage]
    ) -> Callable[[], None]:
        """Returns a function that waits for the end of the copying."""
        used: dict[torch.device, torch.cuda.Stream] = {}
        for copied, storage in zip(copies, storages, strict=True):
            source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            if storage.device.type != "cuda":
                copied.copy_(source)
                continue
            stream = used.get(storage.device)
            if stream is None:
                stream = used[storage.device] = self._stream(storage.device)
                stream.wait_stream(torch.cuda.current_stream(storage.device))
            with torch.cuda.stream(stream):
                copied.copy_(source, non_blocking=True)
        done = []
        for device, stream in used.items():
            event = stream.record_event()
            torch.cuda.current_stream(device).wait_event(event)
            done.append(event)

        def ready() -> None:
            for event in done:
                event.synchronize()
            storages.clear()  # until here they must not be freed

        return ready

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


def _pickled(state: Any) -> tuple[bytes, list[torch.UntypedStorage]]:
    target = io.BytesIO()
    pickler = _Pickler(target)
    pickler.dump(state)
    return target.getvalue(), pickler.storages


class _Pickler(pickle.Pickler):
    """Leaves out the storages, as ``torch.save`` does."""

    def __init__(self, target: io.BytesIO) -> None:
        super().__init__(target, pickle.HIGHEST_PROTOCOL)
        self.storages: list[torch.UntypedStorage] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, found: Any) -> tuple[int, torch.dtype | None] | None:
        if isinstance(found, torch.storage.TypedStorage):
            return self._number(found._untyped_storage), found.dtype
        if isinstance(found, torch.UntypedStorage):
            return self._number(found), None
        return None

    def _number(self, storage: torch.UntypedStorage) -> int:
        # The same memory may be behind several objects.
        number = self._numbers.setdefault(storage._cdata, len(self.storages))
        if number == len(self.storages):
            self.storages.append(storage)
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, storages: list[torch.UntypedStorage]) -> None:
        super().__init__(source)
        self._storages = storages

    def persistent_load(self, found: tuple[int, torch.dtype | None]) -> Any:
        number, dtype = found
        storage = self._storages[number]
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
