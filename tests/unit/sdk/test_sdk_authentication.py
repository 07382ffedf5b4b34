"""The choice of credentials, and their storage."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from determined.common.api import authentication, errors
from determined.common.api.token_store import TokenStore
from determined.common.local_cluster import LocalCluster
from determined.common.master import AddressSource, MasterAddress
from tests.unit.sdk.fake_service import URL, FakeService


def address(local: bool = False) -> MasterAddress:
    passwords = {"determined": "secret", "admin": "the admin's"}
    record = LocalCluster(Path(), "c-1", "n", URL, "http://p", passwords)
    return MasterAddress(URL, AddressSource.LOCAL_CLUSTER, record if local else None)


def user_of(service: FakeService, **kwargs: object) -> str:
    session = authentication.connect(
        kwargs.pop("address", address()),  # type: ignore[arg-type]
        transport=service.transport,
        **kwargs,  # type: ignore[arg-type]
    )
    return str(authentication.current_user(session)["username"])


def test_a_password_given_wins(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_USER_TOKEN", "dead")
    assert user_of(service, user="ann", password="ann's") == "ann"


def test_a_wrong_password_is_said(service: FakeService) -> None:
    with pytest.raises(errors.InvalidCredentialsException, match="as ann: wrong"):
        user_of(service, user="ann", password="no")


def test_the_token_of_the_environment(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    TokenStore().set_token(URL, "determined", service.token_for("determined"))
    monkeypatch.setenv("DET_USER_TOKEN", service.token_for("ann"))
    assert user_of(service) == "ann"
    # A user named on the command line is somebody else.
    assert user_of(service, user="determined") == "determined"


def test_tokens_that_are_kept_at_the_same_moment(service: FakeService) -> None:
    names = [f"user-{number:02}" for number in range(16)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: TokenStore().set_token(URL, name, f"of {name}"), names))
        assert TokenStore().users(URL) == names
        list(pool.map(lambda name: TokenStore().drop(URL, name), names[1:]))
    assert TokenStore().users(URL) == names[:1]


def test_user_and_password_of_the_environment(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_USER", "ann")
    monkeypatch.setenv("DET_PASS", "ann's")
    assert user_of(service) == "ann"


def test_variables_count_for_their_program_only(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TokenStore()
    store.set_token(URL, "determined", service.token_for("determined"))
    before = store.path.read_bytes()
    monkeypatch.setenv("DET_USER", "ann")
    monkeypatch.setenv("DET_PASS", "ann's")
    assert user_of(service) == "ann"
    assert user_of(service, user="ann") == "ann"
    assert store.path.read_bytes() == before
    monkeypatch.delenv("DET_USER")
    assert user_of(service) == "determined"


def test_a_named_user_does_not_become_the_default(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TokenStore()
    store.set_token(URL, "determined", service.token_for("determined"))
    assert user_of(service, user="ann", ask=lambda _: "ann's") == "ann"
    assert user_of(service) == "determined"
    assert user_of(service, user="ann", password="ann's") == "ann"
    assert user_of(service) == "determined"
    # The token is kept for the next time that she is named.
    assert user_of(service, user="ann") == "ann"
    assert store.users(URL) == ["ann", "determined"]


def test_the_local_clusters_user_named_once_does_not_become_the_default(
    service: FakeService,
) -> None:
    TokenStore().set_token(URL, "ann", service.token_for("ann"))
    assert user_of(service, address=address(local=True), user="determined") == "determined"
    assert user_of(service, address=address(local=True)) == "ann"


def test_the_environments_password_is_not_tried_for_another_user(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_USER", "ann")
    monkeypatch.setenv("DET_PASS", "ann's")
    with pytest.raises(
        errors.UnauthenticatedException, match="as determined: run `det user login determined`"
    ):
        user_of(service, user="determined")
    assert service.called("POST", "/api/v1/auth/login") == 0


def test_a_login_is_kept(service: FakeService) -> None:
    assert user_of(service, user="ann", password="ann's") == "ann"
    assert user_of(service) == "ann"
    assert service.called("POST", "/api/v1/auth/login") == 1


def test_a_dead_token_is_dropped_and_the_local_cluster_logs_in_by_itself(
    service: FakeService,
) -> None:
    TokenStore().set_token(URL, "determined", "dead")
    assert user_of(service, address=address(local=True)) == "determined"
    assert TokenStore().token(URL) in service.tokens


def test_the_local_cluster_logs_in_each_user_of_its_record(service: FakeService) -> None:
    service.passwords["admin"] = "the admin's"
    assert user_of(service, address=address(local=True), user="admin") == "admin"
    # Named once: later programs are `determined` again.
    assert user_of(service, address=address(local=True)) == "determined"
    with pytest.raises(errors.UnauthenticatedException, match="not logged in"):
        user_of(service, address=address(local=True), user="ann")


def test_the_local_clusters_password_is_not_sent_elsewhere(service: FakeService) -> None:
    with pytest.raises(errors.UnauthenticatedException, match="8080: run `det user login`, or"):
        user_of(service)
    assert service.called("POST", "/api/v1/auth/login") == 0


def test_a_person_is_asked_last(service: FakeService) -> None:
    asked: list[str] = []

    def ask(user: str) -> str:
        asked.append(user)
        return "ann's"

    assert user_of(service, user="ann", ask=ask) == "ann"
    assert user_of(service, user="ann", ask=ask) == "ann"
    assert asked == ["ann"]


def test_a_changed_local_password_is_asked_for(service: FakeService) -> None:
    service.passwords["determined"] = "changed"
    assert user_of(service, address=address(local=True), ask=lambda _: "changed") == "determined"
    TokenStore().drop(URL)
    with pytest.raises(errors.InvalidCredentialsException):
        user_of(service, address=address(local=True))


def test_another_users_cluster_at_the_local_clusters_port(service: FakeService) -> None:
    service.cluster_id = "another"
    with pytest.raises(errors.MasterNotFoundException, match="another cluster answers at"):
        user_of(service, address=address(local=True))
    assert service.called("POST", "/api/v1/auth/login") == 0


def test_a_tasks_token_is_used_for_its_own_service_only(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_SESSION_TOKEN", service.token_for("ann"))
    monkeypatch.setenv("DET_MASTER", "http://fake:8080/")
    assert user_of(service) == "ann"
    monkeypatch.setenv("DET_MASTER", "http://other:8080")
    with pytest.raises(errors.UnauthenticatedException):
        user_of(service)


def test_the_file_is_for_its_owner_only_and_keeps_other_services() -> None:
    store = TokenStore()
    store.set_token("http://a:1", "ann", "t1")
    store.set_token("http://b:2", "bob", "t2")
    store.set_token("http://a:1", "cleo", "t3")
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert json.loads(store.path.read_text()) == {
        "version": 2,
        "masters": {
            "http://a:1": {"active_user": "cleo", "tokens": {"ann": "t1", "cleo": "t3"}},
            "http://b:2": {"active_user": "bob", "tokens": {"bob": "t2"}},
        },
    }
    store.drop("http://a:1")
    assert store.active_user("http://a:1") is None
    assert store.token("http://a:1", "ann") == "t1"
    assert store.token("http://b:2") == "t2"
    left = {path.name for path in store.path.parent.iterdir()}
    assert left == {"auth.json", "auth.json.lock"}


@pytest.mark.parametrize("text", ["", "[]", '{"masters": 3}', '{"masters": {"http://a:1": 7}}'])
def test_a_damaged_file_is_an_empty_one(text: str) -> None:
    store = TokenStore()
    store.path.parent.mkdir(parents=True)
    store.path.write_text(text)
    assert store.token("http://a:1") is None
    store.set_token("http://a:1", "ann", "t")
    assert store.token("http://a:1") == "t"


def test_passwords_are_hidden_as_every_client_hides_them() -> None:
    assert authentication.salt_and_hash("") == ""
    # What version 0.38.1 of Determined's client sends for it.
    hidden = authentication.salt_and_hash("secret")
    assert (hidden[:32], len(hidden)) == ("f6b1a15b3e3f6c5978ad185a85efc1c9", 128)


def test_logging_out_forgets_the_token(service: FakeService) -> None:
    session = authentication.connect(address(), "ann", "ann's", transport=service.transport)
    authentication.logout(session, "ann")
    assert service.tokens == {}
    assert TokenStore().token(URL, "ann") is None
