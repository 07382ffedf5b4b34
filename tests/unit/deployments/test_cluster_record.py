"""cluster.json, its two readers, and the addresses made from it."""

import json
import stat

import pytest

from determined.common import local_cluster
from determined_deployments.local import databases
from determined_deployments.local import state as states
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import ClusterState


@pytest.fixture
def layout(tmp_path):
    made = Layout.of(tmp_path / "data")
    made.create()
    return made


def test_record_survives_a_round_trip_and_is_private(layout):
    state = ClusterState(postgres_port=5555, cluster_name="mine")
    states.save(layout, state)
    assert states.load(layout) == state
    assert stat.S_IMODE(layout.state.stat().st_mode) == 0o600
    assert [p.name for p in layout.root.iterdir() if p.name.endswith(".new")] == []


def test_every_cluster_has_its_own_identity_and_secrets():
    one, two = ClusterState(), ClusterState()
    for name in ("cluster_id", "db_password", "prefect_auth", "agent_token"):
        assert getattr(one, name) != getattr(two, name)
    assert one.passwords["admin"] != one.passwords["determined"]


def test_clients_read_the_clusters_runs(layout):
    assert local_cluster.read(layout.root) is None
    state = ClusterState(master_port=8123, prefect_port=4321)
    states.save(layout, state)
    found = local_cluster.read(layout.root)
    assert found is not None
    assert found.master_url == "http://127.0.0.1:8123"
    assert found.prefect_api_url == "http://127.0.0.1:4321/api"
    assert found.passwords == state.passwords
    assert found.passwords.keys() == {"determined", "admin"}
    assert found.cluster_id == state.cluster_id
    assert not any(password in repr(found) for password in found.passwords.values())
    assert state.prefect_auth not in repr(found)


def test_damaged_record_is_named(layout):
    layout.state.write_text('{"cluster_id": 7')
    with pytest.raises(ValueError, match=r"cluster\.json is damaged"):
        local_cluster.read(layout.root)
    with pytest.raises(ClusterError, match=r"cluster\.json is damaged"):
        states.load(layout)
    layout.state.write_text(json.dumps({"master_port": "many"}))
    with pytest.raises(ClusterError, match="master_port"):
        states.load(layout)


def test_data_dir_is_argument_then_variable_then_platform(tmp_path, monkeypatch):
    monkeypatch.setenv("DET_DATA_DIR", str(tmp_path / "variable"))
    assert local_cluster.data_dir(tmp_path / "argument") == tmp_path / "argument"
    assert local_cluster.data_dir() == tmp_path / "variable"
    monkeypatch.delenv("DET_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_cluster.data_dir().name == "determined"
    assert tmp_path in local_cluster.data_dir().parents


@pytest.mark.parametrize(
    ("server", "expected", "asyncpg"),
    [
        (
            "postgresql://u:p@db:5433/postgres",
            "postgresql://u:p@db:5433/prefect",
            "postgresql+asyncpg://u:p@db:5433/prefect",
        ),
        (
            "postgres://u@/?host=/run/pg",
            "postgresql://u@/prefect?host=/run/pg",
            "postgresql+asyncpg://u@/prefect?host=%2Frun%2Fpg",
        ),
        (
            "postgresql://db?sslmode=require",
            "postgresql://db/prefect?sslmode=require",
            "postgresql+asyncpg://db/prefect?ssl=require",
        ),
    ],
)
def test_addresses_on_an_external_server(server, expected, asyncpg):
    databases.check_server_url(server)
    assert databases.on_server(server, "prefect") == expected
    assert databases.for_asyncpg(expected) == asyncpg


def test_maintenance_database_is_the_given_one_unless_it_is_ours():
    assert databases.maintenance("postgresql://db/admin") == "postgresql://db/admin"
    assert databases.maintenance("postgresql://db/") == "postgresql://db/postgres"
    assert databases.maintenance("postgresql://db/determined") == "postgresql://db/postgres"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mysql://db/x", "scheme 'mysql'"),
        ("postgresql://db/x?options=-cfoo", "option 'options' is not supported"),
    ],
)
def test_addresses_that_cannot_work_are_refused(address, message):
    with pytest.raises(ClusterError, match=message):
        databases.check_server_url(address)


def test_messages_show_no_password():
    shown = databases.without_password("postgresql://me:secret@db:5433/x?sslmode=require")
    assert shown == "postgresql://me@db:5433/x"
