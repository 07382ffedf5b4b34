"""Compilers' caches: only for the same user's same code, bounded, and without endless waits."""

from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from determined.common.wire.legs import LegSpec
from determined_tasks import compiled_code, shared_dir
from tests import accounts
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService, spec


@pytest.fixture(autouse=True)
def an_agent_that_sets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of torch's compiler, by an earlier test, sets torch's variable for the whole process."""
    for name in compiled_code.VARIABLES:
        monkeypatch.delenv(name, raising=False)


KEEPS = {"compiled_bytes": 1 << 30}

SEEN = (
    f"NAMES = {list(compiled_code.VARIABLES)}"
    + """
import json, os, pathlib
found = {name: os.environ.get(name) for name in NAMES}
kept = pathlib.Path(found["TRITON_CACHE_DIR"] or "nowhere")
print(json.dumps([found, sorted(path.name for path in kept.glob("*"))]))
if found["TRITON_CACHE_DIR"]:
    kept.mkdir(exist_ok=True)
    (kept / os.environ["DET_ALLOCATION_ID"]).write_bytes(b"kernel")
"""
)

COMPILES = """
import time, torch
from torch._dynamo.utils import counters
twice = torch.compile(lambda x: torch.sin(x) * 2 + torch.cos(x))
begin = time.monotonic()
twice(torch.ones(8))
found = counters["inductor"]
print(found["fxgraph_cache_hit"], found["fxgraph_cache_miss"])
"""


def run(legs: LegRunner, script: str, **fields: Any) -> dict[str, Any]:
    fields.setdefault("place", KEEPS)
    return legs.run({"train.py": script}, **fields)


def told(service: FakeService) -> tuple[dict[str, str | None], list[str]]:
    found, kept = json.loads(service.text("stdout").splitlines()[-1])
    return found, kept


def order(**fields: Any) -> LegSpec:
    return LegSpec.from_json(spec(**fields))


def test_a_later_trial_finds_compiled_code(
    legs: LegRunner, service: FakeService, fork: bool
) -> None:
    run(legs, SEEN, fork=fork)
    variables, kept = told(service)
    home = legs.work_dir / "compiled"
    assert kept == []
    assert all(Path(path or "").is_relative_to(home) for path in variables.values())
    run(legs, SEEN, fork=fork, allocation_id="8.abc.1", experiment_id=8, trial_id=8)
    assert told(service) == (variables, ["7.abc.1"]), "also another experiment's, of the same code"


@pytest.mark.parametrize(
    "other", [{"owner": "ann"}, {"model_def_hash": "d2"}, {"cluster_id": "another"}]
)
def test_other_users_do_not_find_it(
    legs: LegRunner, service: FakeService, other: dict[str, str]
) -> None:
    run(legs, SEEN)
    service.model_defs["d2"] = service.model_defs["d1"]
    run(legs, SEEN, allocation_id="8.abc.1", **other)
    assert told(service)[1] == []


def test_a_users_own_settings_stay(legs: LegRunner, service: FakeService) -> None:
    run(legs, SEEN, environment_variables=["TORCHINDUCTOR_CACHE_DIR=/his"])
    variables, _ = told(service)
    assert variables["TORCHINDUCTOR_CACHE_DIR"] == "/his"
    assert str(variables["TRITON_CACHE_DIR"]).startswith(str(legs.work_dir))


def test_nothing_is_kept_where_the_settings_say_so(legs: LegRunner, service: FakeService) -> None:
    run(legs, SEEN, place={"compiled_bytes": 0})
    assert set(told(service)[0].values()) == {None}
    assert not (legs.work_dir / "compiled").exists()


def test_a_leg_that_compiles_nothing_leaves_nothing(legs: LegRunner) -> None:
    run(legs, "print('done')")
    assert list((legs.work_dir / "compiled").iterdir()) == []


HEADER = Path(sysconfig.get_path("include"), "Python.h")


@pytest.mark.skipif(not HEADER.exists(), reason=f"torch.compile needs {HEADER}")
@pytest.mark.timeout(240)
def test_torch_compiles_once(legs: LegRunner, service: FakeService) -> None:
    run(legs, COMPILES)
    assert service.text("stdout").split() == ["0", "1"], service.text("stderr")
    run(legs, COMPILES, allocation_id="7.abd.1")
    assert service.text("stdout").split()[-2:] == ["1", "0"]


def fill(work_dir: Path, owner: str, size: int, age: float) -> Path:
    with compiled_code.used(work_dir, order(owner=owner), None, 1 << 40) as code:
        assert code is not None
        (code / "kernel").write_bytes(os.urandom(size))
    lock = code.parent / shared_dir.LOCK
    os.utime(lock, (lock.stat().st_atime - age,) * 2)
    return code.parent


def test_the_longest_unused_goes_first_and_used_ones_stay(tmp_path: Path) -> None:
    oldest = fill(tmp_path, "a", 1 << 20, age=300)
    older = fill(tmp_path, "b", 1 << 20, age=200)
    newest = fill(tmp_path, "c", 1 << 20, age=100)
    home = tmp_path / "compiled"
    with compiled_code.used(tmp_path, order(owner="a"), None, 1 << 40):
        lock = oldest / shared_dir.LOCK
        os.utime(lock, (0, 0))
        compiled_code.drop_unused(home, "c", 5 << 19)
        assert (oldest.exists(), older.exists(), newest.exists()) == (True, False, True)
    (home / ".gone-1").mkdir()
    compiled_code.drop_unused(home, "c", 2 << 20)
    assert oldest.exists()
    compiled_code.drop_unused(home, "another", 2 << 20)
    assert [path.name for path in home.iterdir()] == [compiled_code.MEASURED]


def test_a_leg_removes_compiled_code_above_the_limit(legs: LegRunner) -> None:
    before = fill(legs.work_dir, "ann", 1 << 20, age=300)
    (legs.work_dir / "compiled" / compiled_code.MEASURED).unlink()
    run(legs, SEEN, place={"compiled_bytes": 1 << 19})
    assert not before.exists()


def test_the_baton_of_a_builder_that_was_killed_is_taken_away(tmp_path: Path) -> None:
    with compiled_code.used(tmp_path, order(), None, 1 << 40) as code:
        assert code is not None
        built = code / "extensions" / "mine"
        held = code / "extensions" / "other"
        for folder in (built, held):
            folder.mkdir(parents=True)
        (built / "lock").touch()
        outside = tmp_path / "lock"
        outside.touch()
        (code / "extensions" / "link").symlink_to(tmp_path)
        with (held / "lock").open("w"), compiled_code.used(tmp_path, order(), None, 1 << 40):
            assert not (built / "lock").exists()
            assert (held / "lock").exists(), "somebody has it open"
    assert not (held / "lock").exists()
    assert outside.exists(), "no link is followed"


def test_each_account_has_its_own(service: FakeService) -> None:
    with accounts.made(2) as people, accounts.passable_folder() as folder:
        legs = LegRunner(service, folder / "agent")
        try:
            places = []
            for number, person in enumerate(people):
                for again in (1, 2):
                    ended = run(
                        legs,
                        SEEN,
                        allocation_id=f"7.ab{number}.{again}",
                        agent_user={"uid": person.pw_uid},
                    )
                    assert ended["exit_code"] == 0, service.text("stderr")
                    variables, kept = told(service)
                    assert kept == [f"7.ab{number}.1"][: again - 1]
                code = Path(variables["TRITON_CACHE_DIR"] or "").parent
                assert code.stat().st_uid == person.pw_uid
                assert code.stat().st_mode & 0o777 == 0o700
                places.append(code)
            assert len(set(places)) == 2
        finally:
            legs.close()
