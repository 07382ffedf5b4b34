"""The output and requests of `det model`; for a real service see tests/integration/service_api."""

from __future__ import annotations

import json

from determined.cli.output.differences import differences, flat
from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService, model_version


def test_names_are_one_part_of_an_address(det: Det, service: FakeService) -> None:
    service.versions = [model_version()]
    assert det("m", "describe", "a b?#%", "--version", "x y").exit_code == 0
    assert ("GET", "/api/v1/models/a%20b%3F%23%25/aliases/x%20y") in service.calls


def test_lists_ask_as_they_are_told(det: Det, service: FakeService) -> None:
    det("m", "ls", "-w", "a,b", "--sort-by", "name", "--order-by", "desc")
    asked = service.params[-1]
    assert asked.get_list("workspaceNames") == ["a", "b"]
    assert (asked["sortBy"], asked["orderBy"]) == ("SORT_BY_NAME", "ORDER_BY_DESC")
    assert det("m", "ls", "--sort-by", "size").exit_code == 2
    assert det("m", "move", "digits").exit_code == 2


def test_a_repeated_request_can_be_known(det: Det, service: FakeService) -> None:
    service.versions = [model_version()]
    det("m", "create", "digits")
    det("m", "register-version", "digits", "u-1")
    posted = [body for body in service.bodies if body and "requestId" in body]
    assert len({body["requestId"] for body in posted}) == 2


def test_differences() -> None:
    one = {"lr": 0.1, "net": {"depth": 3, "kind": "a"}, "same": [1], "flag": True, "none": {}}
    other = {"lr": 0.3, "net": {"depth": 4, "new": 1}, "same": [1], "flag": False, "none": {}}
    assert flat(one)["net.depth"] == 3
    assert differences(one, other) == [
        {"name": "flag", "first": True, "second": False},
        {"name": "lr", "first": 0.1, "second": 0.3, "change": 0.3 - 0.1},
        {"name": "net.depth", "first": 3, "second": 4, "change": 1},
        {"name": "net.kind", "first": "a"},
        {"name": "net.new", "second": 1},
    ]
    assert differences(None, {}) == []
    assert differences({"id": 1}, {"id": 2}, ids=True) == [{"name": "id", "first": 1, "second": 2}]


def test_diff_says_that_both_are_the_same_version(det: Det, service: FakeService) -> None:
    service.versions = [model_version(1)]
    found = det("m", "diff", "digits", "1", "champion")
    assert (found.exit_code, found.stdout) == (0, "")
    assert found.stderr == "1 and champion are the same version of model 'digits': 1\n"


def test_diff_says_which_metrics_differ(det: Det, service: FakeService) -> None:
    service.versions = [model_version(1), model_version(2)]
    found = json.loads(det("m", "diff", "digits", "1", "2", "--json").stdout)
    assert found["metrics"] == [
        {"name": "validation.accuracy", "first": 0.5, "second": 1.0, "change": 0.5}
    ]
    assert found["hyperparameters"][0]["name"] == "lr"
