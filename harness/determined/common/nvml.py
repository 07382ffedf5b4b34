"""The machine's NVIDIA GPUs, by NVML (the package nvidia-ml-py)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from determined.common import installation

logger = logging.getLogger("determined.nvml")


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    """The NVML library, None without a driver. Raises ImportError without the package."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError(
            f"nvidia-ml-py is not installed: {installation.command('gpu')}"
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("no GPUs are found, because NVML fails: %s", error)
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def handles(nvml: Any) -> list[Any]:
    """The whole GPUs, without their MIG parts; an empty list if ``nvml`` is None."""
    if nvml is None:
        return []
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def device_uuids() -> list[str]:
    """The devices that CUDA programs can use, in the order of the bus: ``GPU-…``, and ``MIG-…`` for each
    part of a GPU in MIG mode. Such a GPU as a whole is not a device.

    A GPU that NVML cannot read is left out with a warning. Raises ImportError without the package.
    """
    with opened() as nvml:
        return _uuids(nvml)


def _uuids(nvml: Any) -> list[str]:
    found: list[str] = []
    for index in range(_count(nvml)):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            devices = _parts(nvml, gpu) if _is_partitioned(nvml, gpu) else [gpu]
            found += [nvml.nvmlDeviceGetUUID(device) for device in devices]
        except nvml.NVMLError as error:
            logger.warning("GPU %d is left out, because NVML cannot read it: %s", index, error)
            continue
        if not devices:
            logger.warning(
                "GPU %d is left out: its MIG mode is on, but it has no parts; create some with nvidia-smi",
                index,
            )
    return found


def _count(nvml: Any) -> int:
    return 0 if nvml is None else int(nvml.nvmlDeviceGetCount())


def cuda_names(uuids: Sequence[str]) -> list[str]:
    """How ``CUDA_VISIBLE_DEVICES`` names these devices in a process that starts now, where
    ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``.

    Numbers, because DeepSpeed, vLLM and others read nothing else. They hold for a moment only, as they shift
    when a GPU falls off the bus. The uuids themselves where one of them is not there, or a GPU is in MIG mode
    or cannot be read, because nobody knows how CUDA counts then: it shows what they name, or nothing.

    Raises ImportError without the package.
    """
    with opened() as nvml:
        there, count = _uuids(nvml), _count(nvml)
    if (
        any(one.startswith("MIG-") for one in there)
        or len(there) < count
        or not set(uuids) <= set(there)
    ):
        return list(uuids)
    return [str(there.index(one)) for one in uuids]


def _is_partitioned(nvml: Any, gpu: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError:  # the GPU has no such mode, or the driver is too old to know of it
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _parts(nvml: Any, gpu: Any) -> list[Any]:
    parts = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        # The places that no part takes, and in a container the parts of others.
        with contextlib.suppress(nvml.NVMLError):
            parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
    return parts
