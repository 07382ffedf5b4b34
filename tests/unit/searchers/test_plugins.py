"""Search methods that other packages offer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from search_configs import config

from determined_searchers import SearcherError, create_searcher, simulate
from determined_searchers.methods import find_method
from determined_searchers.testing import SearchMethodContract
from tests.toy_plugin import offer, toy_site

SPACE = {
    "x": {"type": "double", "minval": -1, "maxval": 1},
    "y": {"type": "double", "minval": -1, "maxval": 1},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the search path that the toy package is installed in."""
    with toy_site(tmp_path_factory.mktemp("site")) as folder:
        yield folder


@pytest.mark.usefixtures("site")
class TestContract(SearchMethodContract):
    config = config("climb", space=SPACE, max_trials=9, max_length={"epochs": 4})


@pytest.mark.usefixtures("site")
def test_it_is_a_search_like_any_other() -> None:
    settings = config("climb", space=SPACE, max_trials=60, max_length=1)
    result = simulate(settings, lambda hparams, *_: hparams["x"] ** 2 + hparams["y"] ** 2, seed=1)
    assert result.end == "completed"
    assert len(result.trials) == 60
    last = [trial.hparams["x"] ** 2 + trial.hparams["y"] ** 2 for trial in result.trials[-20:]]
    assert min(last) < 0.01


@pytest.mark.usefixtures("site")
def test_its_configuration_is_checked_by_its_own_model() -> None:
    with pytest.raises(SearcherError, match=r"^searcher\.keep: .* equal to 1, found 2$"):
        create_searcher(config("climb", max_trials=3, keep=2, max_length=1))
    with pytest.raises(SearcherError, match=r"^searcher: patience \(3\) must be less than"):
        create_searcher(config("climb", max_trials=3, patience=3, max_length=1))


@pytest.mark.usefixtures("site")
def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SearcherError) as caught:
        find_method("climp")
    assert str(caught.value) == (
        "searcher.name: 'climp' is not a searcher (did you mean 'climb'?); known are single, "
        "random, grid, async_halving, adaptive_asha, climb, pbt, tpe"
    )


def test_a_package_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path, "broken-searcher", "broken", "broken_searcher:Broken", "import nothing_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SearcherError) as caught:
        find_method("broken")
    assert str(caught.value) == (
        "searcher.name: the searcher 'broken' of package 'broken-searcher' "
        "(broken_searcher:Broken) cannot be imported: ModuleNotFoundError: No module named "
        "'nothing_here'"
    )


def test_an_object_that_is_not_a_search_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "wrong-searcher", "wrong", "json:dumps")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SearcherError, match=r"'wrong' stands for <function .*not a SearchMethod"):
        find_method("wrong")


def test_a_built_in_searcher_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "thief", "random", "json:dumps")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_method("random").__name__ == "RandomSearch"
