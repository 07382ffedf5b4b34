"""`det workspace` and `det project`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Det
from tests.unit.cli.test_cli_validate import GOOD
from tests.unit.sdk.fake_service import FakeService, command


def test_what_goes_is_shown_before_a_deletion(det: Det, service: FakeService) -> None:
    result = det("workspace", "delete", "vision")
    assert result.exit_code == 1
    assert (
        "With workspace 'vision' go: 1 project, 1 experiment, 1 checkpoint (5 B)" in result.stderr
    )
    assert "2 of its experiments and tasks have not ended" in result.stderr
    assert "1 model in it" in result.stderr
    assert "confirm with --yes" in result.stderr
    assert not [call for call in service.calls if call[0] == "DELETE"]
    failed = det("project", "delete", "vision", "cats", "--yes")
    assert failed.exit_code == 1
    assert "project 'cats' could not be deleted: cats" in failed.stderr


def test_an_unknown_name_is_refused_with_the_nearest(det: Det) -> None:
    for words in (
        ("workspace", "describe", "visoin"),
        ("command", "run", "-w", "visoin", "true"),
        ("experiment", "list", "-w", "visoin", "--project-name", "cats"),
        ("experiment", "move", "1", "visoin", "cats"),
    ):
        result = det(*words)
        assert result.exit_code == 1, words
        assert "there is no workspace 'visoin'; did you mean 'vision'?" in result.stderr, words
    result = det("project", "describe", "vision", "cast")
    assert "no project 'cast' in workspace 'vision'; did you mean 'cats'?" in result.stderr
    half = det("experiment", "list", "-w", "vision")
    assert "--workspace-name and --project-name together" in half.stderr


def test_an_account_needs_all_four(det: Det) -> None:
    result = det("workspace", "create", "vision", "--agent-uid", "5")
    assert result.exit_code == 2
    assert "--agent-user, --agent-gid, --agent-group" in " ".join(result.stderr.split())


def test_what_is_run_goes_into_the_project(det: Det, service: FakeService, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(GOOD)
    pipeline = tmp_path / "pipeline.yaml"
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 1}}
    step = {"name": "first", "experiment": {"entrypoint": "true", "searcher": searcher}}
    pipeline.write_text(json.dumps({"name": "p", "steps": [step]}))
    within = ("-w", "vision", "--project-name", "cats")
    for words in (("flow", "run", config, "-d"), ("pipeline", "run", pipeline, "-d")):
        result = det(*words, *within)
        assert result.exit_code == 0, result.output
        assert service.bodies[-1]["projectId"] == 4
        half = det(*words, "-w", "vision")
        assert "--workspace-name and --project-name together" in half.stderr
        unknown = det(*words, "-w", "visoin", "--project-name", "cats")
        assert "did you mean 'vision'?" in unknown.stderr
    dry = det("flow", "run", config, "--dry-run", *within)
    assert dry.exit_code == 0, dry.output
    assert [body["projectId"] for body in service.bodies if body and body.get("validateOnly")] == [
        4
    ]


def test_a_program_is_run_in_the_workspace(
    det: Det, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    service.commands = [command()]
    run = ("run", "--here", "-d")
    assert det(*run, "-w", "vision", "--", "true").exit_code == 0
    assert service.bodies[-1]["workspaceId"] == 3
    assert det(*run, "-w", "vision", "--project-name", "cats", "--", "true").exit_code == 0
    body = service.bodies[-1]
    assert (body["projectId"], body.get("workspaceId")) == (4, None)
    half = det(*run, "--project-name", "cats", "--", "true")
    assert half.exit_code == 1
    assert "--workspace-name and --project-name together" in half.stderr


def test_a_token_of_a_workspace_is_read_only(det: Det, service: FakeService) -> None:
    service.new_access_token = {"token": "secret", "tokenId": 7}
    made = det("token", "create", "-w", "vision")
    assert made.exit_code == 0, made.output
    body = service.bodies[-1]
    assert (body["workspaceId"], body["readOnly"]) == (3, True)
    assert det("token", "create").exit_code == 0
    assert "workspaceId" not in service.bodies[-1]
