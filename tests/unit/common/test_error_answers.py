"""Refusals of the service, read in one place for every client."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from determined.common.api import errors
from tests.waiting import TIMEOUT_S


def as_json(document: object) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            as_json({"error": {"code": 5, "error": "not found: x"}, "message": "other"}),
            "not found: x",
        ),
        (as_json({"error": {"message": "m"}}), "m"),
        (as_json({"error": "plain"}), "plain"),
        (as_json({"message": "m"}), "m"),
        (as_json({"detail": "d"}), "d"),
        (as_json({"else": 1}), '{"else": 1}'),
        (as_json([1]), "[1]"),
        (b" words\n", "words"),
        (b"\xff", "�"),
        (b"", "HTTP 404"),
    ],
)
def test_the_message_of_a_refusal(body: bytes, message: str) -> None:
    found = errors.of_answer(404, body, "application/json", "http://m:1")
    assert (type(found), found.message, found.status_code) == (
        errors.NotFoundException,
        message,
        404,
    )


def test_a_page_for_browsers_comes_from_another_program() -> None:
    found = errors.of_answer(404, b"<h1>no</h1>", "text/html; charset=utf-8", "http://m:1")
    assert isinstance(found, errors.BadResponseException)
    assert "http://m:1" in found.message and "<h1>" not in found.message
    # A proxy before the service sends this while the service is away.
    away = errors.of_answer(502, b"<h1>bad gateway</h1>", "text/html")
    assert (type(away), away.message) == (errors.APIException, "HTTP 502")


def test_a_session_imports_no_httpx() -> None:
    code = (
        "import sys; from determined.common.api import Session; Session('http://h');"
        "sys.exit('httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0
