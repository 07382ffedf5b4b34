"""The pages of all routes and settings match the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from determined_service import reference
from determined_service.access.rules import Grant
from determined_service.base import settings_page
from determined_service.base.settings import Settings
from tests.printed import ROOT


def test_the_page_matches_the_routes() -> None:
    made = reference.page()
    written = (ROOT / "docs" / "reference" / "rest.md").read_text()
    assert made == written, "the page is not that of these routes: run `make docs`"
    login = "| POST | `/api/v1/auth/login` | everybody | A session token"
    remove = "| DELETE | `/api/v1/agents/{agent_id}` | administrators | "
    assert login in made and remove in made
    assert "| `/internal/" not in made


def test_every_rule_has_words() -> None:
    assert reference.WHO.keys() == {None, *Grant}


def test_the_page_matches_the_settings() -> None:
    made = settings_page.page()
    written = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert made == written, "the page is not that of these settings: run `make docs`"
    assert "| `port` | `8080` | The port where it listens. |" in made
    assert "| `agent_token` | must be set | " in made


def test_mistakes_in_the_settings_are_named_without_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "service.yaml"
    monkeypatch.setenv("DET_SERVICE_CONFIG", str(path))
    path.write_text("db_url: postgresql://x\nagent_token: t\ntrusted_proxies: [10.0.0.3]\n")
    assert Settings.load().trusted_proxies == ["10.0.0.3"]
    path.write_text("db_url: 7\nagent_tokn: secret\n")
    with pytest.raises(SystemExit) as raised:
        Settings.load()
    said = str(raised.value)
    assert f"{path}: agent_tokn: Extra inputs are not permitted; did you mean agent_token?" in said
    assert f"{path}: agent_token: Field required" in said and f"{path}: db_url: " in said
    assert "secret" not in said
    path.unlink()
    with pytest.raises(SystemExit, match=r"service.yaml cannot be read: .*No such file"):
        Settings.load()
