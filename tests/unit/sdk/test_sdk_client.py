"""The SDK's module-level functions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from determined import experimental
from determined.experimental import Determined, client
from tests.unit.sdk.fake_service import FakeService, experiment
from tests.waiting import TIMEOUT_S


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(client, "_determined", None)
    yield


@pytest.fixture
def logged_in(fresh: None, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    def make(*args: object, **kwargs: object) -> Determined:
        return Determined(*args, transport=service.transport)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "Determined", make)
    return service


def test_login_comes_first_and_once(logged_in: FakeService) -> None:
    client.login("http://fake:8080", "ann", "ann's")
    assert client.whoami().username == "ann"
    assert client.get_session_username() == "ann"
    with pytest.raises(RuntimeError, match="only once"):
        client.login("http://fake:8080", "ann", "ann's")
    client.logout()
    assert logged_in.tokens == {}


def test_the_first_call_logs_in(logged_in: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_MASTER", "fake")
    monkeypatch.setenv("DET_USER", "ann")
    monkeypatch.setenv("DET_PASS", "ann's")
    logged_in.experiments[5] = experiment(5)
    assert client.get_experiment(5).id == 5
    assert [e.id for e in client.list_experiments()] == [5]
    assert {user.username for user in client.list_users()} == {"determined", "ann"}


def test_every_public_name_exists() -> None:
    for module in (client, experimental):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_function_for_each_method_of_determined() -> None:
    methods = {name for name in vars(Determined) if not name.startswith("_") and name != "logout"}
    assert methods - set(client.__all__) == set()


def test_the_sdk_needs_no_platform() -> None:
    code = (
        "import sys; from determined.experimental import client;"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    loaded = set(out.stdout.split())
    assert loaded & {"torch", "prefect", "numpy", "sqlalchemy", "typer"} == set()
