"""Helpers that published scripts import from ``determined.common`` and ``determined.util``."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from determined import util as det_util
from determined.common import api, check, util, yaml
from determined.common.api import authentication, certs, errors
from determined.common.api.transport import HttpTransport, adapted
from determined.expconf import ConfigError
from determined.experimental import client
from tests.unit.sdk.fake_service import URL, FakeService
from tests.waiting import TIMEOUT_S


@pytest.fixture
def reached(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """Scripts give no transport: all connections go to the service in memory."""
    in_memory = adapted(service.transport, URL)
    monkeypatch.setattr(HttpTransport, "send", lambda _, request: in_memory.send(request))
    return service


# Sessions, as scripts of three eras make them.


def test_a_login_without_a_trace(reached: FakeService) -> None:
    session = authentication.login(URL, "determined", "secret", certs.default_load(URL))
    user = session.get("/api/v1/me").json()["user"]
    assert (user["username"], session.username) == ("determined", "determined")
    assert session.get("api/v1/me")["user"] == user  # as our own code reads it
    patient = session.with_retry(SimpleNamespace(total=7))
    assert (patient.max_retries, session.max_retries) == (7, 5)
    assert patient.get("/api/v1/me").ok
    assert not (util.get_config_path() / "auth.json").exists()
    with pytest.raises(errors.InvalidCredentialsException):
        authentication.login(URL, "determined", "wrong")


def test_a_session_of_a_kept_login(reached: FakeService) -> None:
    first = authentication.login_with_cache(URL, "determined", "secret")
    again = authentication.login_with_cache(URL)
    assert again.token == first.token
    assert again.get("/api/v1/me").status_code == 200


def test_a_session_of_an_authentication_object(reached: FakeService) -> None:
    certs.cli_cert = certs.default_load(URL)
    authentication.cli_auth = authentication.Authentication(
        URL, requested_user="determined", password="secret", try_reauth=True
    )
    auth = authentication.cli_auth
    session = api.Session(URL, "determined", auth, certs.cli_cert)
    assert session.get("/api/v1/me").json()["user"]["username"] == auth.get_session_user()
    named = api.Session(
        master=URL, username="determined", token=auth.get_session_token(), cert=None, max_retries=0
    )
    assert (named.token, named.max_retries) == (session.token, 0)
    with pytest.raises(errors.NotFoundException):
        named.get("/api/v1/nothing")


def test_credentials_by_position() -> None:
    cert = certs.Cert(noverify=True)
    session = api.Session(URL, "name", "token", cert, 3)
    assert (session.username, session.token, session.max_retries) == ("name", "token", 3)
    assert (api.Session(URL, "token").token, api.Session(URL).token) == ("token", None)
    assert api.Session(URL, "name", "token", max_retries=2).max_retries == 2


def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cert.pem").write_text("PEM")
    cert = certs.default_load("https://h", tmp_path / "cert.pem", "other")
    assert (cert.pem, cert.name, cert.noverify) == ("PEM", "other", False)
    monkeypatch.setenv("DET_MASTER_CERT_FILE", "noverify")
    cert = certs.default_load("https://h")
    assert (cert.pem, cert.name, cert.noverify) == (None, None, True)
    tls = certs.tls_for("https://h", cert)
    assert tls is not None
    assert tls.context.check_hostname is False
    with pytest.raises(FileNotFoundError):
        certs.default_load("https://h", str(tmp_path / "absent.pem"))


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_MASTER", "host")
    assert util.get_default_master_address() == api.get_default_master_url() == "http://host:8080"
    assert api.canonicalize_master_url("https://h/") == "https://h:443"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("from determined.common.api import bindings", "use determined.experimental.client"),
        ("import determined.common.api.bindings", "use determined.experimental.client"),
        ("from determined.common import api; api.bindings", "use determined.experimental.client"),
        ("from determined.common.api import request", "login_with_cache"),
        ("from determined.common.api import get", "session.get"),
        ("from determined.common import storage", "determined.storage"),
        ("from determined.common.declarative_argparse import Arg", "use argparse"),
        ("from determined.common.experimental import Oauth2ScimClient", "no SSO"),
        ("from determined.util import write_user_code", "the platform reads"),
    ],
)
def test_absent_commands_name_an_alternative(statement: str, words: str) -> None:
    with pytest.raises(ImportError, match="is not in this release: ") as raised:
        exec(statement, {})
    assert not isinstance(raised.value, ModuleNotFoundError)
    assert words in str(raised.value)


def test_the_old_places_have_the_same_classes() -> None:
    from determined.common.experimental import determined, experiment, session, trial
    from determined.common.experimental.checkpoint import Checkpoint

    assert determined.Determined is client.Determined
    assert experiment.ExperimentReference is client.ExperimentReference
    assert trial.TrialReference is client.TrialReference
    assert Checkpoint is client.Checkpoint
    assert session.Session is api.Session


# Small helpers.


def test_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("lr: 1e-3\nlist: [a]\n")
    with (tmp_path / "c.yaml").open() as file:
        assert util.safe_load_yaml_with_exceptions(file) == {"lr": 0.001, "list": ["a"]}
    assert yaml.safe_load(b"[1, x]") == [1, "x"]
    assert util.yaml_safe_load("") is None
    assert (
        util.yaml_safe_dump({"b": 1, "a": [1, 2]}, default_flow_style=False)
        == "a:\n- 1\n- 2\nb: 1\n"
    )
    for broken in ("a: [", "a: 1\na: 2"):
        with pytest.raises((yaml.YAMLError, ConfigError)):
            yaml.safe_load(broken)
        with pytest.raises(SystemExit) as ended:
            util.safe_load_yaml_with_exceptions(broken)
        assert ended.value.code == 1
        assert "Error: the YAML cannot be read" in capsys.readouterr().err


def test_checks() -> None:
    check.gt_eq(2, 1)
    check.check_in(1, [1])
    for failing in (
        lambda: check.eq(1, 2, "the number"),
        lambda: check.true(0, "the number"),
        lambda: check.check_not_none(None, "the number"),
        lambda: check.is_instance(1, str, "the number"),
        lambda: check.len_eq([1], 2, "the number"),
    ):
        with pytest.raises(check.CheckFailedError, match=r"expected .*: the number$"):
            failing()


def test_waiting_and_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([(False, 0), (True, 5)])
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert util.wait_for(lambda: next(answers)) == 5
    with pytest.raises(TimeoutError):
        util.wait_for(lambda: (False, 0), timeout=0)
    random.seed(1)
    state = random.getstate()
    util.preserve_random_state(random.random)()
    assert random.getstate() == state
    with pytest.warns(FutureWarning, match="use another"):
        util.deprecated("use another")(len)([])


def test_set_logger_logs_to_stdout() -> None:
    code = (
        "import logging; from determined.common import set_logger; set_logger(False)\n"
        "logging.info('seen'); logging.debug('unseen'); set_logger(True); logging.debug('now')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    lines = done.stdout.splitlines()
    assert [line.split("]")[1] for line in lines] == [" root: seen", " root: now"], done.stderr


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "b").mkdir()
    for there in ("b", "c", "c"):
        det_util.force_create_symlink(str(tmp_path / "a"), str(tmp_path / there))
        assert (tmp_path / there / "file").read_text() == "x"
    unlink = os.unlink

    def raced(path: Any, **options: Any) -> None:
        unlink(path, **options)
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "unlink", raced)
    det_util.rmtree_nfs_safe(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    det_util.rmtree_nfs_safe(tmp_path / "a")
    monkeypatch.setattr(os, "unlink", unlink)
    assert logging.getLogger("determined") is det_util.logger
