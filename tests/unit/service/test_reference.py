"""The page of all routes says what the routes say."""

from __future__ import annotations

from determined_service import reference
from determined_service.access.rules import Grant
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
