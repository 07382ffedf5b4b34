"""State that imports leave in a zygote's process does not reach a fork: the fork begins like a new
program."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.fork_server import plans
from determined_deployments.agent.launchers.fork_server.server import ForkServer, ZygotePlan
from tests.programs.agent import state_of_process
from tests.programs.agent.conftest import FakeControl, running
from tests.programs.legs.fake_service import archive, spec

PACKAGES = [
    "pandas",
    "pyarrow",
    "sklearn.ensemble",
    "scipy.stats",
    "matplotlib.pyplot",
    "torch._dynamo",
    "torch._inductor.codecache",
    "torch.distributed",
    "torch.utils.tensorboard",
    "transformers.trainer",
    "accelerate",
    "lightning",
    "keras",
    "optuna",
    "mlflow",
    "boto3",
    "google.cloud.storage",
    "azure.storage.blob",
    "h5py",
    "safetensors.torch",
    "docker",
    "plotly",
    "rich",
]

WRITES = """
import ctypes, locale, os, tempfile
os.environ["LEFT_BY_IMPORT"] = "1"
os.environ["LANG"] = "left"
os.environ.pop("KEPT", None)
ctypes.CDLL(None).setenv(b"LEFT_BY_C", b"1", 1)
os.umask(0o007)
locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")
tempfile.tempdir = "/left"
value = 1
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the fork server's path with a package that writes wherever it can."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "writes.py").write_text(WRITES)
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(folder), str(root), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    monkeypatch.setenv("KEPT", "here")
    return folder


SEEN = """(lambda os, locale, tempfile, subprocess: {
    'env': dict(os.environ), 'c': 'LEFT_BY_C' in subprocess.check_output(['env'], text=True),
    'umask': [os.umask(0o22), os.umask(0o22)][0], 'locale': locale.setlocale(locale.LC_ALL),
    'tmp': tempfile.gettempdir(), 'imported': 'writes' in __import__('sys').modules,
})(*map(__import__, ('os', 'locale', 'tempfile', 'subprocess')))"""


async def test_a_call_has_the_fork_servers_first_state(modules: Path, tmp_path: Path) -> None:
    async with ForkServer() as server:
        server.want(ZygotePlan("warm", "root", ["writes"], env={"OF_THE_USER": "1"}))
        await server.wait_ready(["warm"])
        found = {}
        for name in ("root", "warm"):
            target = tmp_path / name
            order = {"path": str(target), "code": SEEN}
            child = await server.fork([name], "tests.programs.agent.forked:write", order)
            assert await child.ended == 0
            found[name] = eval(target.read_text())
    assert [found[name].pop("imported") for name in ("root", "warm")] == [False, True]
    assert found["warm"] == found["root"]
    assert found["root"]["env"]["KEPT"] == "here"


async def test_each_trial_has_the_environment_of_its_order(
    config: AgentConfig, control: FakeControl, modules: Path
) -> None:
    script = """
import json, os, sys
own = ("DET_", "TMPDIR", "PWD")
env = {k: v for k, v in os.environ.items() if not k.startswith(own) and k not in ("PATH", "VIRTUAL_ENV")}
print(json.dumps(["writes" in sys.modules, env]))
import writes
"""
    control.model_defs["d1"] = archive({"train.py": script})
    async with running(config):
        for number in (1, 2):
            control.start(spec(f"7.abc.{number}"))
            await control.until(lambda n=number: f"7.abc.{n}" in control.exits)
    first, second = map(json.loads, control.text("stdout").splitlines())
    assert second[0], "its fork server has imported the package"
    assert second[1] == first[1]
    assert second[1]["KEPT"] == "here"
    assert not [name for name in second[1] if name.startswith("LEFT_")]


def _program(env: dict[str, str], folder: Path) -> None:
    # The tests' parent may ignore these signals (nohup does, and a shell for background jobs), and programs
    # inherit that.
    command = ["env", "--default-signal=HUP,INT,QUIT", sys.executable, state_of_process.__file__]
    subprocess.run(command, env=env, cwd=folder, check=True)


@pytest.mark.timeout(300)
async def test_a_fork_begins_like_a_program_after_any_import(modules: Path, tmp_path: Path) -> None:
    # The first ones are the harness's own, which all zygotes have.
    imports = " ".join(["determined.core", "determined.common.api.session", *PACKAGES])
    env = {**os.environ, "IMPORTS": imports, "PYTHONUNBUFFERED": "1"}
    async with ForkServer() as server:
        server.want(ZygotePlan("trial", "root", plans.TRIAL_MODULES, plans.TRIAL_OPTIONAL))
        server.want(ZygotePlan("warm", "trial", optional=PACKAGES))
        await server.wait_ready(["warm"])
        forks: list[dict[str, Any]] = []
        for number in (1, 2):
            target = tmp_path / f"fork-{number}"
            order = {
                "argv": [state_of_process.__file__],
                "env": {**env, "OUT": str(target)},
                "workdir": str(tmp_path),
            }
            child = await server.fork(["warm"], "tests.programs.agent.forked:become", order)
            assert await child.ended == 0
            forks.append(json.loads(target.read_text()))
    target = tmp_path / "program"
    await asyncio.to_thread(_program, {**env, "OUT": str(target)}, tmp_path)
    program = json.loads(target.read_text())
    for fork in forks:
        assert fork["begin"] == program["begin"]
        assert fork["packages"] == program["packages"]
    numbers = [*forks[0]["draws"], *forks[1]["draws"], *program["draws"]]
    assert len(set(numbers)) == len(numbers), "no two draw the same"
