"""Fork servers: their imports, refusals and learned modules."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from determined.common.api import errors
from determined.common.wire.legs import LegSpec
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.fork_server import learning, zygote
from determined_deployments.agent.launchers.fork_server.learning import Learning
from determined_deployments.agent.launchers.fork_server.server import ForkServer, ZygotePlan
from tests.programs.agent.conftest import FakeControl, running
from tests.programs.legs.fake_service import archive, spec
from tests.waiting import TIMEOUT_S, until_async

PRINT = "tests.programs.agent.forked:write"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the fork server's path."""
    folder = tmp_path / "modules"
    folder.mkdir()
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(folder), str(root), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    return folder


async def call(server: ForkServer, names: list[str], folder: Path, code: str) -> str:
    """The value of an expression in a fork."""
    target = folder / "answer"
    target.unlink(missing_ok=True)
    child = await server.fork(names, PRINT, {"path": str(target), "code": code})
    assert await child.ended == 0
    return target.read_text()


async def test_children_have_their_zygotes_imports(modules: Path) -> None:
    (modules / "costly.py").write_text("import os\npid = os.getpid()\nseen = os.environ.get('A')")
    async with ForkServer() as server:
        server.want(ZygotePlan("warm", "root", ["costly"], env={"A": "5"}))
        await server.wait_ready(["warm"])
        first = await call(server, ["warm", "root"], modules, "__import__('costly').pid")
        second = await call(server, ["warm", "root"], modules, "__import__('costly').pid")
        assert first == second
        assert await call(server, ["warm"], modules, "__import__('costly').seen") == "5"
        cold = await call(server, ["root"], modules, "'costly' in __import__('sys').modules")
        assert cold == "False"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
            "thread",
        ),
        ("raise RuntimeError('no')", "RuntimeError: no"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import absent_package", "absent_package"),
        (
            "import _thread, time\n_thread.start_new_thread(time.sleep, (60,))\ntime.sleep(0.1)",
            "thread",
        ),
    ],
)
async def test_module_that_must_not_be_imported_is_left_out(
    modules: Path, caplog: pytest.LogCaptureFixture, source: str, reason: str
) -> None:
    (modules / "broken.py").write_text(source)
    (modules / "fine.py").write_text("")
    caplog.set_level("INFO")
    async with ForkServer() as server:
        server.want(ZygotePlan("warm", "root", ["fine", "broken"]))
        await asyncio.wait_for(server.wait_ready(["warm"]), TIMEOUT_S)
        known = "sorted({'fine', 'broken'} & set(__import__('sys').modules))"
        assert await call(server, ["warm"], modules, known) == "['fine']"
    assert reason in caplog.text


async def test_module_that_crashes_the_interpreter_costs_the_zygote_only(modules: Path) -> None:
    (modules / "crash.py").write_text("import os\nos.abort()")
    async with ForkServer() as server:
        server.want(ZygotePlan("warm", "root", ["crash"]))
        await server.wait_ready(["root"])
        assert await call(server, ["warm", "root"], modules, "1 + 1") == "2"
        await until_async("the zygote given up", lambda: "warm" not in server._wanted)
        assert not server.is_ready("warm")


async def test_optional_module_need_not_be_installed(modules: Path) -> None:
    async with ForkServer() as server:
        server.want(ZygotePlan("warm", "root", optional=["absent_package.part", "wave"]))
        await server.wait_ready(["warm"])
        assert (
            await call(server, ["warm"], modules, "'wave' in __import__('sys').modules") == "True"
        )


async def test_exit_statuses(modules: Path) -> None:
    async with ForkServer() as server:
        target = {"path": str(modules / "x")}
        child = await server.fork(["root"], PRINT, {**target, "code": "__import__('os')._exit(3)"})
        assert os.waitstatus_to_exitcode(await child.ended or 0) == 3
        kill = "__import__('os').kill(__import__('os').getpid(), 9)"
        child = await server.fork(["root"], PRINT, {**target, "code": kill})
        assert os.waitstatus_to_exitcode(await child.ended or 0) == -9


def test_cuda_initialised_by_an_import_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = type("torch", (), {"cuda": type("cuda", (), {"is_initialized": lambda: True})})
    monkeypatch.setitem(zygote.sys.modules, "torch", torch)
    monkeypatch.setattr(zygote.threading, "active_count", lambda: 1)
    with pytest.raises(zygote.BrokenImportError) as caught:
        zygote.import_modules(["json"])
    assert caught.value.args == ("json", "it initialises CUDA")


async def test_second_trial_of_an_experiment_starts_with_the_firsts_imports(
    config: AgentConfig, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "FEWEST_MODULES", 1)
    monkeypatch.setattr(learning, "SECONDS_OF_MODULE", TIMEOUT_S)
    monkeypatch.setattr(learning, "PATIENCE_SECONDS", TIMEOUT_S)
    script = """
import sys
print("wave" in sys.modules, "helper" in sys.modules, "sndhdr" in sys.modules)
import helper, wave
"""
    control.model_defs["d1"] = archive({"train.py": script, "helper.py": "import sndhdr"})
    control.model_defs["d2"] = archive({"train.py": script + "#", "helper.py": "import sndhdr"})
    async with running(config):
        control.start(spec("7.abc.1"))
        await control.until(lambda: "7.abc.1" in control.exits)
        # This one waits until the imports are done.
        control.start(spec("7.abc.2"))
        await control.until(lambda: "7.abc.2" in control.exits)
        for number, code in ((8, "d1"), (9, "d2")):
            control.start(spec(f"{number}.abc.1", experiment_id=number, model_def_hash=code))
            await control.until(lambda n=number: f"{n}.abc.1" in control.exits)
    lines = control.text("stdout").splitlines()
    assert lines[0] == "False False False"
    assert lines[1] == "True False True", "packages are there, the user's own module is not"
    assert lines[2] == "True False True", "another experiment with the same code has them, too"
    assert lines[3] == "False False False", "other code starts from the base"


async def no_source(model_def_hash: str) -> bytes:
    raise errors.NotFoundException(f"no model definition {model_def_hash}")


async def test_a_zygote_is_dropped_after_its_last_leg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "FEWEST_MODULES", 1)
    monkeypatch.setattr(learning, "SECONDS_OF_MODULE", TIMEOUT_S)
    monkeypatch.setattr(learning, "PATIENCE_SECONDS", TIMEOUT_S)
    monkeypatch.setattr(learning, "KEEP_SECONDS", 0.2)
    async with ForkServer() as server:
        server.want(ZygotePlan(learning.TRIAL, "root"))
        await server.wait_ready([learning.TRIAL])
        learner = Learning(server, tmp_path, no_source)
        leg = LegSpec.from_json(spec())
        names, path = learner.before_leg(leg)
        key = learning.key_of(leg)
        assert names == [f"{key}-learnt", key, "trial", "root"]
        assert path is not None
        await asyncio.to_thread(Path(path).write_text, '["wave"]')
        learner.after_leg(leg)
        await asyncio.wait_for(learner.settle(leg), TIMEOUT_S)
        assert server.is_ready(f"{key}-learnt")
        # A leg that starts within the time keeps it.
        learner.before_leg(leg)
        await asyncio.sleep(0.4)
        assert server.is_ready(f"{key}-learnt")
        learner.after_leg(leg)
        await until_async("its end", lambda: not server.is_ready(f"{key}-learnt"))


async def test_modules_in_the_source_are_imported_before_the_first_leg(
    config: AgentConfig, control: FakeControl, modules: Path
) -> None:
    # One import per file, so that only followed imports count.
    script = """
import sys
print(*("costly" in sys.modules, "costly.part" in sys.modules, "rare" in sys.modules))
import own
"""
    (modules / "costly").mkdir()
    (modules / "costly" / "__init__.py").write_text("from costly.part import value")
    (modules / "costly" / "part.py").write_text("value = 1")
    (modules / "rare.py").write_text("")
    own = "from costly import value, part\nif not value:\n    import rare\n"
    control.model_defs["d1"] = archive({"train.py": script, "own.py": own})
    async with running(config):
        for number in (1, 2):
            control.start(spec(f"7.abc.{number}"))
            await control.until(lambda n=number: f"7.abc.{n}" in control.exits)
    assert control.text("stdout").splitlines() == ["True True False"] * 2


async def test_a_first_leg_does_not_wait_for_a_source_that_cannot_be_had(
    tmp_path: Path,
) -> None:
    async with ForkServer() as server:
        learner = Learning(server, tmp_path, no_source)
        leg = LegSpec.from_json(spec())
        names, _ = learner.before_leg(leg)
        await asyncio.wait_for(learner.settle(leg), TIMEOUT_S)
        assert not any(server.is_ready(name) for name in names[:2])


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"


async def learnt(learner: Learning, server: ForkServer, leg: LegSpec, names: list[str]) -> str:
    """Let the learner take up the imports of a leg; returns the name of the zygote."""
    _, path = learner.before_leg(leg)
    assert path is not None
    await asyncio.to_thread(Path(path).write_text, json.dumps(names))
    learner.after_leg(leg)
    return f"{learning.key_of(leg)}-learnt"


async def test_a_package_that_must_not_be_imported_is_left_out_whole_and_for_good(
    tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(learning, "FEWEST_MODULES", 1)
    (modules / "opens").mkdir()
    (modules / "opens" / "__init__.py").write_text("")
    names = [f"opens.part{number}" for number in range(20)]
    for number in range(20):
        (modules / "opens" / f"part{number}.py").write_text(THREAD)
    caplog.set_level("INFO")
    async with ForkServer() as server:
        server.want(ZygotePlan(learning.TRIAL, "root"))
        await server.wait_ready([learning.TRIAL])
        learner = Learning(server, tmp_path, no_source)
        zygote = await learnt(learner, server, LegSpec.from_json(spec()), [*names, "wave"])
        await asyncio.wait_for(server.wait_ready([zygote]), TIMEOUT_S)
        known = "sorted({'opens', 'wave'} & set(__import__('sys').modules))"
        assert await call(server, [zygote], modules, known) == "['wave']"
        assert caplog.text.count("is not imported before forks") == 1
        # Another agent on the machine, other code.
        again = Learning(server, tmp_path, no_source)
        other = LegSpec.from_json(spec(model_def_hash="d2"))
        zygote = await learnt(again, server, other, [*names, "sndhdr"])
        await asyncio.wait_for(server.wait_ready([zygote]), TIMEOUT_S)
        assert caplog.text.count("is not imported before forks") == 1


async def test_a_zygote_that_offends_again_and_again_is_given_up_and_nobody_waits(
    tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(learning, "FEWEST_MODULES", 1)
    monkeypatch.setattr(learning, "SECONDS_OF_MODULE", TIMEOUT_S)
    monkeypatch.setattr(learning, "PATIENCE_SECONDS", TIMEOUT_S * 100)
    names = [f"opens{number}" for number in range(9)]
    for name in names:
        (modules / f"{name}.py").write_text(THREAD)
    caplog.set_level("INFO")
    leg = LegSpec.from_json(spec())
    async with ForkServer() as server:
        server.want(ZygotePlan(learning.TRIAL, "root"))
        await server.wait_ready([learning.TRIAL])
        learner = Learning(server, tmp_path, no_source)
        zygote = await learnt(learner, server, leg, [*names, "wave"])
        learner.before_leg(leg)
        await asyncio.wait_for(learner.settle(leg), TIMEOUT_S)
        await until_async("it is given up", lambda: zygote not in server._wanted)
        assert caplog.text.count("is not imported before forks") == learning.MOST_TRIES
        await asyncio.wait_for(learner.settle(leg), TIMEOUT_S)


async def test_imports_that_compute_for_ever_end_and_are_not_tried_again(
    tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "FEWEST_MODULES", 1)
    monkeypatch.setattr(learning, "IMPORT_CPU_SECONDS", 1)
    (modules / "endless.py").write_text("while True:\n    pass\n")
    leg = LegSpec.from_json(spec())
    async with ForkServer() as server:
        server.want(ZygotePlan(learning.TRIAL, "root"))
        await server.wait_ready([learning.TRIAL])
        learner = Learning(server, tmp_path, no_source)
        zygote = await learnt(learner, server, leg, ["endless"])
        assert zygote in server._wanted
        await until_async("it is given up", lambda: zygote not in server._wanted)
        again = Learning(server, tmp_path, no_source)
        await learnt(again, server, leg, ["endless"])
        assert zygote not in server._wanted


async def test_learning_does_not_wait_for_an_abandoned_zygote(
    tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "FEWEST_MODULES", 1)
    (modules / "opens.py").write_text(THREAD)
    leg = LegSpec.from_json(spec())

    async def source(_: str) -> bytes:
        return archive({"train.py": "import opens\n"})

    async with ForkServer() as server:
        server.want(ZygotePlan(learning.TRIAL, "root"))
        await server.wait_ready([learning.TRIAL])
        learner = Learning(server, tmp_path, source)
        _, path = learner.before_leg(leg)
        await asyncio.wait_for(learner.settle(leg), TIMEOUT_S)
        key = learning.key_of(leg)
        await until_async("it is given up", lambda: not server.is_wanted(key))
        assert path is not None
        await asyncio.to_thread(Path(path).write_text, '["wave"]')
        learner.after_leg(leg)
        await asyncio.wait_for(server.wait_ready([f"{key}-learnt"]), TIMEOUT_S)
