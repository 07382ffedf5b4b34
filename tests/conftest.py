"""Fixtures of every suite that talks to a real cluster."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from determined.common import lean_jsonschema
from tests.local_cluster import LocalCluster

# Before Prefect, as our processes do it.
lean_jsonschema.import_it()

# The processes of xdist read the same tests at the same time: the second one finds the first one's bytecode.
# In this process only: what tests start keeps to its environment.
sys.dont_write_bytecode = False

# Keras decides when it is imported; its default, TensorFlow, is not installed.
os.environ.setdefault("KERAS_BACKEND", "torch")

# The numbers that tests expect are a CPU's, and the clusters that they start have CPU slots: no test sees
# the machine's GPUs, nor does a process that it starts. Tests marked `gpu` start theirs with `gpu_env`.
VISIBLE = "CUDA_VISIBLE_DEVICES"
VISIBLE_BEFORE = "TESTS_CUDA_VISIBLE_DEVICES"  # set once: the processes of xdist inherit it
ALL = "all"
os.environ.setdefault(VISIBLE_BEFORE, os.environ.get(VISIBLE, ALL))
os.environ[VISIBLE] = ""

# Run few examples, the same in every run: a finding must not depend on the run, and CI time is limited.
# (too_slow is suppressed because a busy machine makes examples slowly.) To search with other examples each
# time: HYPOTHESIS_PROFILE=thorough pytest tests/unit/service tests/unit/searchers tests/unit/expconf
hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    max_examples=30,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("thorough", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def environment_with_gpus() -> dict[str, str]:
    """This process's environment, with the GPUs that it could have used before they were hidden."""
    env = {name: value for name, value in os.environ.items() if name != VISIBLE}
    if os.environ[VISIBLE_BEFORE] != ALL:
        env[VISIBLE] = os.environ[VISIBLE_BEFORE]
    return env


@functools.cache
def why_no_gpu() -> str | None:
    """The reason for which tests marked ``gpu`` are skipped here; None: there is a GPU."""
    if shutil.which("nvidia-smi") is None:
        return "needs an NVIDIA GPU, and there is no nvidia-smi here"
    if environment_with_gpus().get(VISIBLE) == "":
        return f"needs an NVIDIA GPU, and {VISIBLE} was empty before the tests began"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    if listed.returncode or "GPU " not in listed.stdout:
        return "needs an NVIDIA GPU, and nvidia-smi lists none"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: no collection of garbage need look at them, neither while they are
    made nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and (reason := why_no_gpu()) is not None:
        pytest.skip(reason)


@pytest.fixture
def gpu_env() -> dict[str, str]:
    """The environment for a process that may see the GPUs, in tests marked ``gpu``."""
    return environment_with_gpus()


@pytest.fixture(autouse=True, scope="module")
def no_services_of_prefect() -> Iterator[None]:
    """Ends what Prefect's client has started in this process, after each module.

    Otherwise tests of other modules fail later: the exit hook of such a service raises in every fork (a
    worker of a torch DataLoader ends with code 1 and says nothing), and a service whose server is gone draws
    from the global ``random`` before it connects again.
    """
    yield
    module = sys.modules.get("prefect._internal.concurrency.services")
    if module is None:
        return
    hooks: list[functools.partial[None]] = threading._threading_atexits  # type: ignore[attr-defined]
    for hook in list(hooks):
        service = getattr(getattr(hook, "func", None), "__self__", None)
        if isinstance(service, module._QueueServiceBase):
            service._drain().result(timeout=60)
            hooks.remove(hook)


# The tests of each of these share what takes long to start: a Docker engine, a Prefect server, an
# installation of the published client.
TOGETHER = (
    ("chaos/",),
    ("compat/",),
    ("integration/containers/",),
    ("integration/control/",),
    ("integration/deployments/",),
    ("integration/disposable/",),
    ("integration/mlflow/",),
    ("integration/registry/", "integration/service_api/"),
    ("integration/storage/",),
)


class Shares(LoadScopeScheduling):
    """Distribute the tests of `make test` over its processes; each process has a separate cluster.

    A free process takes the next file or group, in the order of collection: the suites with clusters come
    first, and files that last a second or two come last, so that all end together.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0].removeprefix("tests/")
        return next((folders[0] for folders in TOGETHER if path.startswith(folders)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares:
    return Shares(config, log)


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """One local cluster for the whole test session: Postgres, Prefect, the service and an agent."""
    with LocalCluster.running(torch=True) as running:
        yield running
