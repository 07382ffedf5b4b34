"""Samples the machine's CPU, memory, disk, network and GPU while a trial runs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from determined.common import installation
from determined.constants import SHARED_FS_CONTAINER_PATH
from determined.core._distributed import DistributedContext
from determined.core._reporter import Reporter

logger = logging.getLogger("determined.core")

Sample = dict[str, Any]
Sampler = Callable[[], Sample]


def cpu_sampler() -> Sampler:
    """``cpu_util_simple``: percent of all cores since the last sample."""
    import psutil

    psutil.cpu_percent()
    return lambda: {"cpu_util_simple": psutil.cpu_percent()}


def memory_sampler() -> Sampler:
    """``memory_free``: bytes that programs could still get."""
    import psutil

    return lambda: {"memory_free": psutil.virtual_memory().available}


def disk_sampler() -> Sampler:
    """Bytes per second read and written, operations per second; by path, percent used of ``/`` and of
    the place where agents mount a shared file system.
    """
    import psutil

    def counters() -> Sample:
        found = psutil.disk_io_counters()
        if found is None:  # containers without /proc/diskstats
            return {}
        return {
            "disk_iops": found.read_count + found.write_count,
            "disk_throughput_read": found.read_bytes,
            "disk_throughput_write": found.write_bytes,
        }

    rates = _rates(counters)
    paths = [path for path in ("/", SHARED_FS_CONTAINER_PATH) if os.path.ismount(path)]
    return lambda: {
        **rates(),
        **{path: {"disk_util": psutil.disk_usage(path).percent} for path in paths},
    }


def network_sampler() -> Sampler:
    """Bytes per second sent and received."""
    import psutil

    def counters() -> Sample:
        found = psutil.net_io_counters()
        return {
            "net_throughput_sent": found.bytes_sent,
            "net_throughput_recv": found.bytes_recv,
        }

    return _rates(counters)


def gpu_sampler() -> Sampler | None:
    """By GPU uuid: ``gpu_util`` (percent) and ``gpu_free_memory`` (bytes); None without NVML."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        names = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    except ImportError:
        logger.debug(
            "GPU metrics are not sampled, because nvidia-ml-py is not installed: %s",
            installation.command("gpu"),
        )
        return None
    except pynvml.NVMLError as error:
        logger.info("GPU metrics are not sampled: %s", error)
        return None

    def sample() -> Sample:
        try:
            return {
                name: {
                    "gpu_util": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
                    "gpu_free_memory": pynvml.nvmlDeviceGetMemoryInfo(handle).free,
                }
                for name, handle in zip(names, handles, strict=True)
            }
        except pynvml.NVMLError as error:  # a GPU that fell off the bus
            raise OSError(f"NVML: {error}") from error

    return sample if handles else None


def _rates(counters: Callable[[], Sample]) -> Sampler:
    """Growth per second of each counter since the last sample."""
    before, then = counters(), time.monotonic()

    def sample() -> Sample:
        nonlocal before, then
        now, values = time.monotonic(), counters()
        elapsed = max(now - then, 1e-9)
        rates = {
            name: (value - before.get(name, value)) / elapsed for name, value in values.items()
        }
        before, then = values, now
        return rates

    return sample


def average(samples: list[Sample]) -> Sample:
    """The mean of each value, one level of nesting included."""
    result: Sample = {}
    for name in {name: None for sample in samples for name in sample}:
        values = [sample[name] for sample in samples if name in sample]
        nested = isinstance(values[0], dict)
        result[name] = average(values) if nested else sum(values) / len(values)
    return result


class ProfilerContext:
    """``on()`` and ``off()``: reports groups "cpu", "memory", "disk", "network" and "gpu".

    Each report holds the means of several samples under the agent's id, at the last reported number of
    steps completed. The samples describe a machine, so only the process of local rank 0 takes them.
    """

    def __init__(self, agent_id: str, reporter: Reporter, dist: DistributedContext) -> None:
        self._agent_id = agent_id
        self._reporter = reporter
        self._dist = dist
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Start sampling every ``sampling_interval`` seconds; no effect when it is on.

        Raises ValueError for an interval below 0.1 s or less than one sample per report.
        """
        if sampling_interval < 0.1:
            raise ValueError(f"sampling_interval must be at least 0.1, found {sampling_interval}")
        if samples_per_report < 1:
            raise ValueError(f"samples_per_report must be at least 1, found {samples_per_report}")
        if self._thread is not None or self._dist.local_rank != 0:
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(sampling_interval, samples_per_report, self._stop),
            name="determined-profiler",
            daemon=True,
        )
        self._thread.start()

    def off(self) -> None:
        """Stop sampling and report the samples taken so far. No effect when it is off."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _run(self, interval: float, per_report: int, stop: threading.Event) -> None:
        import psutil

        found: dict[str, Sampler | None] = {
            "cpu": cpu_sampler(),
            "memory": memory_sampler(),
            "disk": disk_sampler(),
            "network": network_sampler(),
            "gpu": gpu_sampler(),
        }
        samplers = {group: sampler for group, sampler in found.items() if sampler is not None}
        samples: dict[str, list[Sample]] = {group: [] for group in samplers}
        taken, done = 0, False
        while not done:
            done = stop.wait(interval)
            for group, sampler in list(samplers.items()):
                try:
                    samples[group].append(sampler())
                except (psutil.Error, OSError) as error:
                    logger.warning("the group %s is not sampled any more: %s", group, error)
                    del samplers[group]
            taken += 1
            if done or taken >= per_report:
                for group, several in samples.items():
                    if several:
                        self._reporter.sampled(group, {self._agent_id: average(several)})
                    several.clear()
                taken = 0


class DummyProfilerContext(ProfilerContext):
    """Off-cluster nothing is sampled."""

    def __init__(self) -> None:
        pass

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        logger.info("the system profiler runs only on the cluster; nothing is sampled")

    def off(self) -> None:
        """Nothing to stop."""
