"""Names that could pass for another user's, and names that could not."""

from __future__ import annotations

import pytest

from determined_service.access.display_names import problem_of, skeleton


@pytest.mark.parametrize(
    "name",
    [
        "Admin",
        "ADMIN",
        "aDm1n",
        " admin ",
        "A d m i n",
        "the admin",
        "Administrator",
        "r00t",
        "D3termined",
        "\uff21dmin",
        "\u00c1dm\u00edn",
        "\u0430dmin",
        "adm\u0456n",
        "ad\u200bmin",
        "Eve\x1b[2J",
        "Eve\u202e",
    ],
)
def test_refused(name: str) -> None:
    assert problem_of(name)


@pytest.mark.parametrize(
    "name",
    [
        "Ada King",
        "Badminton",
        "O'Brien-Smith 3rd",
        "Zo\u00eb M\u00fcller",
        "\u5f20\u4f1f",
        "R\u00f3bert",
        "\u0410\u043d\u043d\u0430 \u041f\u0430\u0432\u043b\u043e\u0432\u0430",
        "\u0391\u03bd\u03bd\u03b1",
    ],
)
def test_allowed(name: str) -> None:
    assert problem_of(name) is None


def test_names_that_look_alike() -> None:
    assert skeleton("Ada  King") == skeleton("ADA K1NG") == skeleton("\u00e0da king")
    assert skeleton("Ada King") != skeleton("Ada Kong")
