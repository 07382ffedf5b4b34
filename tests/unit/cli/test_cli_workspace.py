"""`det workspace` and `det project`."""

from __future__ import annotations

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService


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
