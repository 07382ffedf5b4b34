"""The configuration of searchers that installed packages offer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from expconf_examples import STORAGE
from jsonschema import Draft202012Validator

from determined.expconf import (
    ConfigError,
    check,
    complete,
    json_schema,
    load_yaml,
    merge,
    plugins,
    validate,
)
from tests.toy_plugin import offer, toy_site

CLIMB = """\
entrypoint: python3 train.py
searcher:
  name: climb
  metric: loss
  max_trials: 8
  max_length: {epochs: 3}
"""


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the search path that the toy package is installed in."""
    with toy_site(tmp_path_factory.mktemp("site")) as folder:
        yield folder


def stored(text: str, **layers: Any) -> dict[str, Any]:
    searcher: dict[str, Any] = complete(load_yaml(text), defaults=STORAGE, **layers)["searcher"]
    return searcher


def problems(text: str, **layers: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        complete(load_yaml(text, "c.yaml"), defaults=STORAGE, **layers)
    return [str(problem) for problem in caught.value.problems]


def test_it_is_completed_with_its_own_defaults_and_the_common_ones() -> None:
    assert stored(CLIMB) == {
        "name": "climb",
        "metric": "loss",
        "smaller_is_better": True,
        "source_trial_id": None,
        "source_checkpoint_uuid": None,
        "max_trials": 8,
        "max_length": {"epochs": 3},
        "keep": 0.5,
        "patience": None,
    }


def test_stored_values_are_read_again() -> None:
    whole = complete(load_yaml(CLIMB), defaults=STORAGE)
    assert complete(whole) == whole
    config = validate(whole)
    assert config.searcher.name == "climb"
    assert config.searcher.max_length.units == 3
    assert config.model_dump(mode="json") == whole


def test_it_is_checked_without_a_cluster() -> None:
    check(load_yaml(CLIMB))


def test_values_are_read_as_everywhere() -> None:
    text = CLIMB.replace("max_trials: 8", "max_trials: 1e1").replace("{epochs: 3}", "3e0")
    searcher = stored(text + "  patience: null\n  keep: 1\n  source_trial_id: 4\n")
    assert [searcher[key] for key in ("max_trials", "max_length", "patience", "keep")] == [
        10,
        3,
        None,
        1.0,
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            CLIMB + "  keeep: 0.3\n",
            "c.yaml:7: searcher.keeep: unknown field for name: climb; did you mean 'keep'? (allowed: ",
        ),
        (CLIMB + "  mode: standard\n", "c.yaml:7: searcher.mode: unknown field for name: climb"),
        (CLIMB + "  keep: 2\n", "c.yaml:7: searcher.keep: must be at most 1.0, found 2"),
        (CLIMB + "  keep: x\n", "c.yaml:7: searcher.keep: expected a number, found 'x'"),
        (
            CLIMB.replace("max_trials: 8", "max_trials: 0"),
            "c.yaml:5: searcher.max_trials: must be at least 1, found 0",
        ),
        (
            CLIMB.replace("max_trials: 8", "max_trials: '8'"),
            "c.yaml:5: searcher.max_trials: expected an integer, found '8'",
        ),
        (
            CLIMB.replace("  max_trials: 8\n", ""),
            "c.yaml:2: searcher.max_trials: required field is missing",
        ),
        (
            CLIMB.replace("  metric: loss\n", ""),
            "c.yaml:2: searcher.metric: required field is missing",
        ),
        (
            CLIMB.replace("{epochs: 3}", "{epochs: 0}"),
            "c.yaml:6: searcher.max_length.epochs: must be at least 1, found 0",
        ),
        (
            CLIMB.replace("{epochs: 3}", "{hours: 3}"),
            "c.yaml:6: searcher.max_length.hours: unknown field",
        ),
        (CLIMB + "  patience: 0\n", "c.yaml:7: searcher.patience: must be at least 1, found 0"),
        (
            CLIMB + "  patience: 8\n",
            "c.yaml:2: searcher: patience (8) must be less than max_trials (8)",
        ),
        (
            CLIMB + "  source_trial_id: 3\n  source_checkpoint_uuid: abc\n",
            "c.yaml:8: searcher.source_checkpoint_uuid: give either source_trial_id or",
        ),
        (
            CLIMB.replace("climb", "clime"),
            "c.yaml:3: searcher.name: found 'clime'; did you mean 'climb'? (allowed: single, "
            "random, grid, adaptive_asha, async_halving, custom, climb, pbt, tpe)",
        ),
    ],
)
def test_mistakes(text: str, expected: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(expected)


def test_a_misspelled_name_does_not_hide_later_mistakes() -> None:
    found = problems(CLIMB.replace("climb", "clime") + "  keep: 2\n")
    assert [line.split(": ")[1] for line in found] == ["searcher.name", "searcher.keep"]


def test_all_mistakes_are_found_at_once() -> None:
    found = problems(CLIMB + "  keep: 2\n  patience: x\nmax_restarts: -1\n")
    assert [line.split(": ")[1] for line in found] == [
        "searcher.keep",
        "searcher.patience",
        "max_restarts",
    ]


def test_a_template_may_fill_missing_fields() -> None:
    template = {"searcher": {"max_trials": 20, "keep": 0.25, "max_length": {"epochs": 9}}}
    text = CLIMB.replace("  max_trials: 8\n", "") + "  patience: 9\n"
    searcher = stored(text, template=template)
    assert [searcher[key] for key in ("max_trials", "keep", "max_length")] == [
        20,
        0.25,
        {"epochs": 3},
    ]


def test_of_another_searcher_only_the_common_fields_are_taken_over() -> None:
    grid = {"searcher": {"name": "grid", "metric": "x", "max_length": 7, "source_trial_id": 3}}
    merged = merge({"searcher": {"name": "climb", "max_trials": 2}}, grid, None)
    assert merged["searcher"] == {
        "name": "climb",
        "max_trials": 2,
        "metric": "x",
        "source_trial_id": 3,
    }
    nameless = {"searcher": {"metric": "x", "keep": 0.1, "divisor": 3}}
    merged = merge({"searcher": {"name": "climb"}}, nameless, None)
    assert merged["searcher"] == {"name": "climb", "metric": "x", "keep": 0.1}


FREE = """
class Free:
    config_model = None
"""
OPEN = """
from pydantic import BaseModel
class Config(BaseModel, extra="allow"):
    depth: int = 3
class Open:
    config_model = Config
"""
UNMODELLED = """
class Odd:
    config_model = dict
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path, "free-searcher", "free", "free_searcher:Free", FREE)
    offer(tmp_path, "open-searcher", "open", "open_searcher:Open", OPEN)
    offer(tmp_path, "odd-searcher", "odd", "odd_searcher:Odd", UNMODELLED)
    offer(tmp_path, "broken-searcher", "broken", "broken_searcher:Broken", "import nothing_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def named(name: str, fields: str = "") -> str:
    return f"entrypoint: x\nsearcher: {{name: {name}, metric: loss, {fields}}}\n"


@pytest.mark.usefixtures("packages")
def test_a_searcher_without_a_model_takes_any_field() -> None:
    searcher = stored(named("free", "width: [1, {a: b}]"))
    assert searcher["width"] == [1, {"a": "b"}]
    assert searcher["smaller_is_better"] is True
    (problem,) = problems(named("free", "smaller_is_better: 3"))
    assert "searcher.smaller_is_better: expected true or false" in problem


@pytest.mark.usefixtures("packages")
def test_a_model_may_allow_further_fields() -> None:
    searcher = stored(named("open", "width: 4"))
    assert (searcher["width"], searcher["depth"]) == (4, 3)


@pytest.mark.usefixtures("packages")
def test_packages_that_cannot_be_used() -> None:
    assert problems(named("broken")) == [
        "c.yaml:2: searcher.name: the searcher 'broken' of package 'broken-searcher' "
        "(broken_searcher:Broken) cannot be imported: ModuleNotFoundError: No module named "
        "'nothing_here'"
    ]
    assert problems(named("odd")) == [
        "c.yaml:2: searcher.name: config_model of the searcher 'odd' of package 'odd-searcher' "
        "(odd_searcher:Odd) is <class 'dict'>, not a pydantic model"
    ]


@pytest.mark.usefixtures("packages")
def test_the_schema_has_the_usable_plugins() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for text in (CLIMB, named("free", "width: 3"), named("open", "width: 3")):
        validator.validate(load_yaml(text).data)
        validator.validate(complete(load_yaml(text), defaults=STORAGE))
    for text in (
        CLIMB + "  keep: 2\n",
        CLIMB + "  keeep: 1\n",
        CLIMB.replace("  max_trials: 8\n", ""),
        named("broken"),
        named("nobody"),
    ):
        assert not validator.is_valid(load_yaml(text).data)


def test_packages_are_looked_at_only_for_a_name_that_is_not_built_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise AssertionError("packages were looked at")

    monkeypatch.setattr(plugins, "offered", refuse)
    stored(named("random", "max_trials: 3"))
    with pytest.raises(AssertionError, match="looked at"):
        stored(CLIMB)


TPE = "max_trials: 4, max_length: {epochs: 9}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (named("pbt", "population_size: 4, num_rounds: 2, max_length: 8"), None),
        (named("tpe", TPE), None),
        (named("tpe", "max_trials: 4, max_time: 9, time_metric: epochs"), None),
        (named("pbt", "population_size: 1, num_rounds: 2, max_length: 8"), "at least 2, found 1"),
        (named("pbt", "population_size: 4, num_rounds: 2"), "searcher.max_length: required"),
        (
            named("tpe", "max_trials: 4"),
            "searcher: the 'tpe' searcher requires `max_time` and `time_metric` to be set, or a "
            "max_length such as {batches: 100}",
        ),
        (named("tpe", TPE + ", mode: fast"), "searcher.mode: found 'fast' (allowed: "),
        (named("tpe", TPE + ", bracket_rungs: [0]"), "searcher.bracket_rungs[0]: must be at least"),
        (named("tpe", TPE + ", divisor: 1"), "searcher.divisor: must be more than 1"),
    ],
)
def test_the_searchers_that_come_with_this_package(text: str, expected: str | None) -> None:
    if expected is None:
        assert stored(text)["metric"] == "loss"
    else:
        (problem,) = problems(text)
        assert expected in problem
