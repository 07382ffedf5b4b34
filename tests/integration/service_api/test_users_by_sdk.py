"""Users, administered through the SDK."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from determined.cli.root import app
from determined.common.api.errors import (
    BadRequestException,
    ForbiddenException,
    NotFoundException,
    UnauthenticatedException,
)
from determined.experimental import Determined


def test_users(service_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
    admin = Determined(service_url, "admin", "")
    ann = admin.create_user("ann", admin=False, password="secret")
    assert (ann.username, ann.admin, ann.active) == ("ann", False, True)
    assert admin.get_user_by_id(ann.user_id) == admin.get_user_by_name("ann") == ann
    with pytest.raises(BadRequestException, match="ann"):
        admin.create_user("ann", admin=False)
    with pytest.raises(NotFoundException):
        admin.get_user_by_name("bob")

    own = Determined(service_url, "ann", "secret")
    assert own.whoami() == ann
    own.whoami().change_password("new secret", old_password="secret")
    own.whoami().change_display_name("Ann")
    with pytest.raises(ForbiddenException):
        own.create_user("bob", admin=False)
    ann.reload()
    assert ann.display_name == "Ann"
    ann.rename("anna")
    assert ann.deactivate() == {"experiments": [], "tasks": []}
    with pytest.raises(UnauthenticatedException):
        Determined(service_url, "anna", "new secret")
    ann.activate()
    assert Determined(service_url, "anna", "new secret").whoami().username == "anna"


def test_change_password_by_det(
    service_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
    monkeypatch.setenv("DET_MASTER", service_url)
    admin = Determined(service_url, "admin", "")
    admin.create_user("ann", admin=False, password="first")

    def det(*args: str, typed: str) -> Result:
        return CliRunner().invoke(app, ["-u", "ann", "user", *args], input=typed)

    assert det("login", "ann", typed="first\n").exit_code == 0
    wrong = det("change-password", typed="guess\nsecond\n")
    assert (wrong.exit_code, "is wrong: nothing was changed" in wrong.stderr) == (1, True)
    assert "no new password" in det("change-password", typed="first\n").stderr
    done = det("change-password", typed="first\nsecond\n")
    assert (done.exit_code, done.stderr) == (
        0,
        "changed the password of ann; your other sessions have ended\n",
    )
    assert det("whoami", typed="").stdout == "ann\n"
    # Before a password is asked for: none is typed.
    refused = det("change-password", "admin", typed="")
    assert (refused.exit_code, "may change user" in refused.stderr) == (1, True)
    refused = det("create", "eve", typed="")
    assert (refused.exit_code, refused.stderr) == (
        1,
        "error: only an administrator may create users\n",
    )
    by_admin = CliRunner().invoke(app, ["-u", "admin", "user", "create", "eve"], input="hers\n")
    assert (by_admin.exit_code, by_admin.stderr) == (0, "created eve\n")

    Determined(service_url, "admin", "")
    by_admin = ["-u", "admin", "user", "change-password", "ann"]
    done = CliRunner().invoke(app, by_admin, input="third\n")
    assert (done.exit_code, done.stderr) == (
        0,
        "changed the password of ann, whose sessions have ended\n",
    )
    assert Determined(service_url, "ann", "third").whoami().username == "ann"
