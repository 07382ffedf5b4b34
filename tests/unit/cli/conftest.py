"""Fixtures of the CLI's tests: `det` in this process, against a service in memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main
import typer.testing
from typer.testing import CliRunner, Result

from determined.cli.root import app
from determined.cli.state import State
from tests.unit.sdk.fake_service import URL, FakeService

Det = Callable[..., Result]


@pytest.fixture(autouse=True)
def clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without the login, cluster and variables of the account that runs the tests; the fake service is the
    master."""
    for name in ("DET_MASTER_ADDR", "DET_USER_TOKEN", "DET_SESSION_TOKEN", "DET_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DET_MASTER", URL)
    monkeypatch.setenv("DET_USER", "determined")
    monkeypatch.setenv("DET_PASS", "secret")
    monkeypatch.setenv("DET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
    # Wide enough that help does not wrap within the texts that tests look for.
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once() -> Iterator[None]:
    """typer builds all commands of a group anew in each run, and they keep nothing from one to the next."""
    build = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", build)
        patch.setattr(typer.testing, "_get_command", build)
        yield


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def det(service: FakeService) -> Det:
    """Runs `det` with these arguments."""

    def run(*args: object, **kwargs: object) -> Result:
        return CliRunner().invoke(
            app,
            [str(arg) for arg in args],
            obj=State(transport=service.transport),
            **kwargs,  # type: ignore[arg-type]
        )

    return run
