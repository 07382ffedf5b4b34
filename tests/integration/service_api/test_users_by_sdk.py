"""Users, administered through the SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    own.whoami().change_password("new secret")
    own.whoami().change_display_name("Ann")
    with pytest.raises(ForbiddenException):
        own.create_user("bob", admin=False)
    ann.reload()
    assert ann.display_name == "Ann"
    ann.rename("anna")
    ann.deactivate()
    with pytest.raises(UnauthenticatedException):
        Determined(service_url, "anna", "new secret")
    ann.activate()
    assert Determined(service_url, "anna", "new secret").whoami().username == "anna"
