"""A machine's GPUs, as the package nvidia-ml-py shows them."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence

import pytest


class NVMLError(Exception):
    """Any failure of the library."""


class FakeNvml(types.ModuleType):
    """``gpus``: uuid of each GPU, and its parts by place (None: the place is empty) when MIG mode is on,
    None when the GPU has no such mode, or the failure to read it."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(
        self,
        gpus: Mapping[str, Sequence[str | None] | NVMLError | None],
        mig_off: bool = False,
        driver: bool = True,
    ) -> None:
        super().__init__("pynvml")
        self._gpus = dict(gpus)
        self._mig_off = mig_off
        self._driver = driver
        self.open = 0

    def nvmlInit(self) -> None:
        if not self._driver:
            raise NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        assert self.open
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        uuid = list(self._gpus)[index]
        state = self._gpus[uuid]
        if isinstance(state, NVMLError):
            raise state
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        assert self.open
        return handle

    def _places(self, handle: str) -> Sequence[str | None]:
        places = self._gpus[handle]
        if not isinstance(places, Sequence):
            raise NVMLError("Not Supported")
        return places

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        self._places(handle)
        return [0, 1] if self._mig_off else [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return len(self._places(handle))

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        part = self._places(handle)[index]
        if part is None:
            raise NVMLError("Not Found")
        return part


def install(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> None:
    """``nvml`` replaces the package; None: it is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
