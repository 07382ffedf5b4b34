"""Fixtures of the SDK's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from determined.common.api import Session
from determined.experimental import Determined
from tests.unit.sdk.fake_service import URL, FakeService


@pytest.fixture(autouse=True)
def clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without the login, cluster and variables of the account that runs the tests."""
    for name in ("DET_MASTER", "DET_MASTER_ADDR", "DET_USER", "DET_PASS", "DET_USER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("DET_SESSION_TOKEN", raising=False)
    monkeypatch.setenv("DET_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def session(service: FakeService) -> Session:
    return Session(URL, service.token_for("determined"), transport=service.transport)


@pytest.fixture
def client(service: FakeService) -> Determined:
    return Determined(URL, "determined", "secret", transport=service.transport)
