"""A full disk is named as the cause, where it is one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from fastapi import Request

from determined.common.wire import disk
from determined_service.base import errors, full_disk
from determined_service.base.refusals import NotFound


def asked(folder: Path) -> Request:
    """A request to a service whose directory is ``folder``."""
    state = SimpleNamespace(settings=SimpleNamespace(data_dir=folder))
    return Request({"type": "http", "app": SimpleNamespace(state=state)})


async def explained(error: Exception, folder: Path) -> str:
    refusal = errors.of_database(error)
    assert refusal is not None
    assert refusal.status == 503
    return (await errors.with_cause(refusal, asked(folder))).message


async def test_refusals_of_postgres_without_space(tmp_path: Path) -> None:
    said = await explained(psycopg.errors.DiskFull("could not extend file"), tmp_path)
    assert said.startswith("the disk of the database is full: free some space there")


async def test_a_database_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = psycopg.OperationalError("connection refused")
    assert await explained(away, tmp_path) == "the database does not answer; try again"
    monkeypatch.setattr(disk, "FULL_BYTES", 1 << 60)
    said = await explained(away, tmp_path)
    assert said.startswith(f"the database does not answer: the disk at {tmp_path} is full (")
    assert "free some space there" in said
    # Other refusals do not mention the disk, and a missing folder does not count as full.
    other = NotFound("trial 3 does not exist")
    assert await errors.with_cause(other, asked(tmp_path)) is other
    assert await full_disk.hint(tmp_path / "gone") == ""
