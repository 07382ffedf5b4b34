"""The plan of `det flow run --dry-run`: trials by rung, slots at peak, the pool that takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from determined.cli.submission import preview
from tests.unit.cli.conftest import Det
from tests.unit.cli.test_preview_search import CONFIGS
from tests.unit.sdk.fake_service import URL, FakeService, Refused


def agent(slots: int, *, pool: str = "default", held: int = 0, **more: Any) -> dict[str, Any]:
    """An agent's JSON; ``held`` of its slots are taken."""
    return {
        "id": "agent",
        "resourcePools": [pool],
        "state": "STATE_ALIVE",
        "enabled": True,
        "draining": False,
        "slots": {
            str(i): {
                "id": str(i),
                "enabled": True,
                "container": {"id": "a-1"} if i < held else None,
            }
            for i in range(slots)
        },
        **more,
    }


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text((CONFIGS / "adaptive_asha.yaml").read_text())
    return path


def add(config: Path, text: str) -> None:
    config.write_text(config.read_text() + text)


def plan(det: Det, config: Path, code: int = 0) -> dict[str, Any]:
    result = det("flow", "run", config, "--dry-run", "--json")
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout)["plan"])


def test_the_plan_in_words(det: Det, service: FakeService, config: Path) -> None:
    service.agents = [agent(4, held=1), agent(2), agent(8, pool="gpus")]
    result = det("flow", "run", config, "--dry-run")
    assert result.exit_code == 0, result.output
    said = result.stderr.splitlines()
    start = said.index("plan: 16 trials, about 3058 batches in all")
    assert said[start + 1 :] == [
        "Bracket  Rung  Train         Trials",
        "1        1     62 batches    12",
        "1        2     250 batches   3",
        "1        3     1000 batches  0",
        "2        1     250 batches   4",
        "2        2     1000 batches  1",
        "slots at peak: 12 (12 trials at a time, 1 slot each)",
        f"resource pool: default of the cluster at {URL}, 6 slots, 5 free:"
        " 6 trials fit at a time, the others wait",
    ]
    assert "plan" not in result.stdout
    assert "resource pool" not in result.stdout


def test_the_plan_as_json(det: Det, service: FakeService, config: Path) -> None:
    service.agents = [agent(16)]
    found = plan(det, config)
    search = json.loads(det("preview-search", config, "--json").stdout)
    assert found["search"] == {k: v for k, v in search.items() if k not in ("searcher", "seed")}
    assert (found["peak_trials"], found["slots_per_trial"], found["peak_slots"]) == (12, 1, 12)
    assert found["fits"] is True
    assert found["cluster"] == {
        "master": URL,
        "note": None,
        "started_when_run": False,
        "refusal": None,
        "resource_pool": "default",
        "slots": 16,
        "free_slots": 16,
        "trials_at_once": 16,
    }


def test_a_trial_has_its_slots_on_one_agent(det: Det, service: FakeService, config: Path) -> None:
    service.agents = [agent(5), agent(3)]
    add(config, "resources: {slots_per_trial: 4}\n")
    found = plan(det, config)
    assert (found["peak_slots"], found["cluster"]["slots"]) == (48, 8)
    assert (found["cluster"]["trials_at_once"], found["fits"]) == (1, False)


def test_a_trial_has_its_slots_on_one_machine_of_an_agent(
    det: Det, service: FakeService, config: Path
) -> None:
    service.agents = [agent(8)]
    for number, slot in enumerate(service.agents[0]["slots"].values()):
        slot |= {"machine": "n1" if number < 3 else "n2", "draining": number == 7}
    add(config, "resources: {slots_per_trial: 3}\n")
    found = plan(det, config)["cluster"]
    assert (found["slots"], found["trials_at_once"]) == (7, 2)


def test_the_configuration_may_allow_fewer_slots(
    det: Det, service: FakeService, config: Path
) -> None:
    add(config, "resources: {slots_per_trial: 2, max_slots: 7, resource_pool: gpus}\n")
    service.agents = [agent(8, pool="gpus"), agent(1)]
    found = plan(det, config)
    assert (found["peak_trials"], found["peak_slots"]) == (3, 6)
    assert (found["cluster"]["resource_pool"], found["cluster"]["slots"]) == ("gpus", 8)
    result = det("flow", "run", config, "--dry-run")
    assert "8 slots, 8 free: enough for all trials that run at a time" in result.stderr


def test_trials_without_slots_fit_anywhere(det: Det, service: FakeService, config: Path) -> None:
    service.agents = [agent(1)]
    add(config, "resources: {slots_per_trial: 0}\n")
    found = plan(det, config)
    assert (found["peak_trials"], found["peak_slots"]) == (12, 0)
    assert (found["cluster"]["trials_at_once"], found["fits"]) == (None, True)
    shown = det("flow", "run", config, "--dry-run").stderr
    assert "slots at peak: 0 (12 trials at a time, 0 slots each)" in shown


def test_agents_that_cannot_take_it_do_not_count(
    det: Det, service: FakeService, config: Path
) -> None:
    disabled = agent(2)
    disabled["slots"]["0"]["enabled"] = False
    gone = agent(8, state="STATE_SILENT")
    service.agents = [disabled, agent(4, draining=True), gone, agent(8, state="STATE_ENDED")]
    found = plan(det, config)["cluster"]
    assert (found["slots"], found["free_slots"], found["trials_at_once"]) == (1, 1, 1)
    said = det("flow", "run", config, "--dry-run").stderr
    assert "1 slot, 1 free: 1 trial fits at a time, the others wait" in said
    service.agents = []
    assert "0 slots, 0 free: no trial fits now" in det("flow", "run", config, "--dry-run").stderr


def test_refusals_of_the_cluster(det: Det, service: FakeService, config: Path) -> None:
    service.refusal = Refused(400, "resources.slots_per_trial: 9 slots are more than any agent has")
    result = det("flow", "run", config, "--dry-run")
    assert result.exit_code == 1
    assert "plan: 16 trials" in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith(
        "error: the cluster would refuse this experiment: resources.slots_per_trial: 9"
    )
    found = plan(det, config, code=1)
    assert "9 slots" in found["cluster"]["refusal"]
    assert found["fits"] is False


def test_the_files_stay_here(det: Det, service: FakeService, config: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("12345")
    det("flow", "run", config, code, "--dry-run")
    (sent,) = [body for body in service.bodies if body and "config" in body]
    assert sent["validateOnly"] is True
    assert "modelDefinition" not in sent


def test_without_a_cluster(
    det: Det, service: FakeService, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.away = True
    named = det("flow", "run", config, "--dry-run")
    assert named.exit_code == 0, named.output
    words = "resource pool: the default one; no cluster answers at"
    assert named.stderr.splitlines()[-1] == f"{words} {URL}"
    monkeypatch.delenv("DET_MASTER")
    nowhere = det("flow", "run", config, "--dry-run")
    assert nowhere.stderr.splitlines()[-1] == (
        f"{words} http://localhost:8080: without --dry-run, a cluster is started on this machine"
    )
    found = plan(det, config)
    assert found["search"]["trials"] == 16
    assert found["cluster"]["started_when_run"] is True
    assert found["fits"] is None
    assert service.calls == []


def test_no_password_is_asked_for(
    det: Det, service: FakeService, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_PASS")
    found = plan(det, config)["cluster"]
    assert found["note"] == f"not logged in to the cluster at {URL} (`det user login`)"
    assert found["slots"] is None


def test_a_search_that_only_its_own_program_knows(
    det: Det, service: FakeService, config: Path
) -> None:
    config.write_text("entrypoint: ./t\nsearcher: {name: custom, metric: x}\n")
    service.agents = [agent(2)]
    result = det("flow", "run", config, "--dry-run")
    assert result.exit_code == 0, result.output
    assert (
        "plan: the trials are not known: the program that runs the custom search" in result.stderr
    )
    assert "default of the cluster" in result.stderr
    found = plan(det, config)
    assert (found["search"], found["peak_trials"], found["peak_slots"]) == (None, None, None)


def test_trials_that_train_to_completion(det: Det, service: FakeService, config: Path) -> None:
    config.write_text(
        "entrypoint: ./t\nsearcher: {name: random, metric: x, max_trials: 3}\nhyperparameters: {}\n"
    )
    result = det("flow", "run", config, "--dry-run")
    assert "plan: 3 trials, each trained to completion\n" in result.stderr
    assert "Bracket" not in result.stderr


def test_a_search_that_cannot_begin_is_refused_here(
    det: Det, service: FakeService, config: Path
) -> None:
    service.away = True
    config.write_text(
        "entrypoint: ./t\nsearcher: {name: grid, metric: x}\n"
        "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n"
    )
    result = det("flow", "run", config, "--dry-run")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "hyperparameters.lr" in result.stderr


def test_a_search_too_large_to_simulate_can_be_run(
    det: Det, service: FakeService, config: Path
) -> None:
    config.write_text(config.read_text().replace("max_trials: 16", "max_trials: 1000000"))
    result = det("flow", "run", config, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "searcher.max_trials: 1000000 trials are too many to preview" in result.stderr
    assert plan(det, config)["search"] is None


def test_a_client_without_the_searchers(
    det: Det, service: FakeService, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = plan(det, config)["search"]
    monkeypatch.setattr(preview, "_installed", lambda: None)
    service.routes.append(("POST", "/api/v1/preview-hp-search", lambda r: {"preview": known}))
    assert plan(det, config)["search"] == known
    service.away = True
    found = plan(det, config)
    assert (found["search"], found["note"]) == (
        None,
        "the trials are not known without a cluster",
    )
