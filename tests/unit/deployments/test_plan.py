"""The decisions of `cluster-up` before it starts anything."""

import json
import os
import re
import shutil
import socket
import threading
from datetime import UTC, datetime

import psutil
import pytest

from determined_deployments.agent.config import AgentConfig, DefaultTask
from determined_deployments.local import agent, component, notices, plan, ports, slots
from determined_deployments.local import state as states
from determined_deployments.local.daemon import PidFile
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout
from determined_deployments.local.report import Silent
from determined_deployments.local.state import ClusterState


class Notes(Silent):
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.fixture
def layout(tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "gpus", list)
    made = Layout.of(tmp_path)
    made.create()
    return made


def pretend_running(layout, name):
    """This process plays the component."""
    record = PidFile(os.getpid(), psutil.Process().create_time(), "any", "any")
    layout.pid_file(name).write_text(json.dumps(record.__dict__))


def resolve(layout, notes=None, **wishes):
    with ports.Claims() as claims:
        state = plan.resolve(layout, plan.ClusterOptions(**wishes), claims, notes or Silent())
    states.save(layout, state)
    return state


def test_first_start_takes_the_wishes_and_a_second_keeps_them(layout):
    first = resolve(layout, slots=5, cluster_name="mine", initial_user_password="Secret123")
    assert first.passwords == {"determined": "Secret123", "admin": "Secret123"}
    assert len(first.slots) == 5
    assert resolve(layout) == first


def test_the_account_of_trials_is_kept_until_it_is_taken_away(layout, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    resolve(layout, task_user="nobody")
    state = resolve(layout)
    wanted = {"user": "nobody", "uid": None, "group": None, "gid": None}
    given = {**agent.settings(layout, state), "launcher": "fork_server"}
    assert given["security"] == {"default_task": wanted}
    config = AgentConfig.model_validate(given)
    assert config.security_of_tasks() == {
        "default_task": wanted,
        "allow_root": False,
        "checkpoint_dir": str(layout.checkpoints),
    }
    assert resolve(layout, task_user="").default_task is None


def test_the_limit_of_compiled_code(layout: Layout) -> None:
    given = {**agent.settings(layout, resolve(layout)), "launcher": "fork_server"}
    assert AgentConfig.model_validate(given).compiled_code == 16 << 30
    for said, meant in (("4G", 4 << 30), (0, 0)):
        assert AgentConfig.model_validate({**given, "compiled_code": said}).compiled_code == meant
    with pytest.raises(ValueError, match="expected a size such as"):
        AgentConfig.model_validate({**given, "compiled_code": "much"})


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("no-such-user", "does not know: add the account there"),
        ("nobody:no-such-group", "a group that the machine of"),
        (":users", "expected USER or USER:GROUP, found ':users'"),
        ("nobody:", "expected USER or USER:GROUP"),
    ],
)
def test_a_missing_account(layout, option, words):
    with pytest.raises(ClusterError, match=f"--task-user: .*{words}"):
        resolve(layout, task_user=option)


def test_an_account_that_was_removed_is_named_with_the_way_to_drop_it(layout):
    state = resolve(layout)
    state.default_task = DefaultTask(user="removed-since")
    states.save(layout, state)
    words = "removed-since .*does not know.*cluster-up --task-user ''"
    with pytest.raises(ClusterError, match=words):
        resolve(layout)
    notes = Notes()
    pretend_running(layout, agent.NAME)
    resolve(layout, notes)
    assert any(re.search(words, line) for line in notes.lines)
    layout.pid_file(agent.NAME).unlink()
    assert resolve(layout, task_user="").default_task is None
    assert resolve(layout).default_task is None


def test_only_root_gives_trials_an_account(layout, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(ClusterError, match="only root may start processes of another user"):
        resolve(layout, task_user="nobody")


def test_password_of_existing_users_is_not_changed(layout):
    first, notes = resolve(layout), Notes()
    assert resolve(layout, notes, initial_user_password="Other123").passwords == first.passwords
    assert any("first start" in line for line in notes.lines)


def test_port_in_use_is_replaced_with_a_note_and_remembered(layout):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        states.save(layout, ClusterState(master_port=port, prefect_port=port))
        notes = Notes()
        state = resolve(layout, notes)
        assert len({port, state.master_port, state.prefect_port, state.postgres_port}) == 4
        assert any(f"port {port} is in use by pid {os.getpid()}" in line for line in notes.lines)
    assert resolve(layout) == state


@pytest.mark.parametrize("asked", [True, False])
def test_port_of_a_component_that_dies_is_waited_for(layout, asked):
    with socket.socket() as dying:
        dying.bind(("127.0.0.1", 0))
        dying.listen(1)
        port = dying.getsockname()[1]
        states.save(layout, ClusterState(master_port=port))
        layout.pid_file("service").write_text("{}")
        closing = threading.Timer(0.3, dying.close)
        closing.start()
        notes = Notes()
        state = resolve(layout, notes, master_port=port if asked else None)
        closing.join()
    assert state.master_port == port
    # Other clusters on this machine may have the other ports.
    assert not [line for line in notes.lines if f"port {port} " in line]


def test_port_asked_for_must_be_free(layout):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        with pytest.raises(ClusterError, match=f"--master-port {port}: the port is in use"):
            resolve(layout, master_port=port)


def test_port_lost_after_the_choice_is_replaced(layout):
    state, notes = resolve(layout, master_port=None), Notes()
    others = (state.master_port, state.postgres_port)
    before = state.prefect_port
    with ports.Claims() as claims:
        plan.move(state, "prefect", plan.ClusterOptions(), claims, notes)
    assert state.prefect_port not in (before, *others)
    assert (state.master_port, state.postgres_port) == others
    assert f"port {before} was taken meanwhile by another program" in notes.lines[0]
    with ports.Claims() as claims:
        plan.move(state, "postgres", plan.ClusterOptions(), claims, notes)
    assert state.postgres_port not in others


def test_port_asked_for_and_lost_is_said(layout):
    state = resolve(layout)
    wishes = plan.ClusterOptions(master_port=state.master_port)
    with pytest.raises(ClusterError, match=f"--master-port {state.master_port}: the port is in"):
        plan.move(state, "service", wishes, ports.Claims(), Silent())


def test_drawn_ports_are_none_that_outgoing_connections_get():
    with ports.Claims() as claims:
        drawn = {ports.pick(None, claims) for _ in range(20)}
    assert len(drawn) == 20
    assert drawn <= set(ports.UNUSED)


def test_ports_that_another_cluster_has_just_chosen_are_left_to_it(layout):
    one, two = ports.Claims(), ports.Claims()
    with one, two:
        first = ports.pick(None, one)
        assert ports.pick(first, two) != first
        assert not two.take(first)
        with pytest.raises(ClusterError, match=f"--master-port {first}: the port is in use"):
            resolve(layout, master_port=first)
    assert resolve(layout, master_port=first).master_port == first


def test_running_components_keep_ports_and_slots(layout):
    with socket.socket() as prefect:
        prefect.bind(("127.0.0.1", 0))
        prefect.listen(1)
        port = prefect.getsockname()[1]
        before = ClusterState(prefect_port=port, slots=[states.LocalSlot(id=0, device="cpu")] * 1)
        states.save(layout, before)
        pretend_running(layout, "prefect")
        pretend_running(layout, "agent")
        after = resolve(layout)
    assert after.prefect_port == port
    assert after.slots == before.slots


def test_external_database_cannot_be_swapped(layout):
    resolve(layout, db_url="postgresql://u:p@db:5432/")
    assert resolve(layout).external_db_url == "postgresql://u:p@db:5432/"
    changed = resolve(layout, db_url="postgresql://u:new@db:5432/")
    assert changed.external_db_url == "postgresql://u:new@db:5432/"
    with pytest.raises(ClusterError, match="this cluster's data is in postgresql://u@db:5432/"):
        resolve(layout, db_url="postgresql://u:p@elsewhere:5432/")


def test_own_database_cannot_be_swapped(layout):
    resolve(layout)
    with pytest.raises(ClusterError, match="its own Postgres"):
        resolve(layout, db_url="postgresql://u:p@db:5432/")


def test_database_without_its_record_is_not_guessed_at(layout):
    layout.postgres.mkdir()
    with pytest.raises(ClusterError, match=r"cluster\.json with its password is gone"):
        resolve(layout)


def test_external_database_leaves_postgres_out(layout):
    state = resolve(layout, db_url="postgresql://u:p@db:5432/", slots=2)
    components = {c.name: c for c in plan.build(layout, state)}
    assert list(components) == ["prefect", "service", "agent"]
    prefect = components["prefect"].env
    assert prefect["PREFECT_API_DATABASE_CONNECTION_URL"] == (
        "postgresql+asyncpg://u:p@db:5432/prefect"
    )
    (settings,) = components["service"].files.values()
    assert json.loads(settings)["db_url"] == "postgresql://u:p@db:5432/determined"
    (settings,) = components["agent"].files.values()
    assert json.loads(settings)["slots"] == [
        {"id": 0, "device": "cpu"},
        {"id": 1, "device": "cpu"},
    ]


def test_settings_of_the_service_are_those_it_knows(layout):
    from determined_service.base.settings import Settings

    state = resolve(layout, db_url="postgresql://u:p@db:5432/")
    (component,) = plan.build(layout, state, ["service"])
    (text,) = component.files.values()
    settings = Settings.model_validate_json(text)
    assert settings.cluster_id == state.cluster_id
    assert settings.agent_token.get_secret_value() == state.agent_token


def test_fingerprint_follows_the_build(layout, monkeypatch):
    state = resolve(layout, db_url="postgresql://u:p@db:5432/", slots=2)
    before = {c.name: c.fingerprint for c in plan.build(layout, state)}
    monkeypatch.setattr(component, "_release", lambda: "9.9+0123abcd")
    after = {c.name: c.fingerprint for c in plan.build(layout, state)}
    assert {component.release_of(one) for one in after.values()} == {"9.9+0123abcd"}
    assert all(before[name] != after[name] for name in before)


def test_fingerprint_follows_settings(layout):
    state = resolve(layout, db_url="postgresql://u:p@db:5432/", slots=2)
    one = {c.name: c.fingerprint for c in plan.build(layout, state)}
    assert one == {c.name: c.fingerprint for c in plan.build(layout, state)}
    state.cluster_name = "other"
    two = {c.name: c.fingerprint for c in plan.build(layout, state)}
    assert {name for name in one if one[name] != two[name]} == {"service"}


def test_unknown_component_is_named(layout):
    with pytest.raises(
        ClusterError, match="unknown component 'redis'; choose one of postgres, prefect"
    ):
        plan.build(layout, ClusterState(), ["redis"])


def test_each_pool_has_an_agent_with_its_own_name_and_folders(layout):
    state = ClusterState(
        agent_id="me", pool="gpus", other_pools=["small", "ÅB c/d"], postgres_port=1
    )
    state.slot_type, state.slots = "cuda", [states.LocalSlot(id=0, device="GPU-1")]
    made = {each.name: each for each in plan.build(layout, state)}
    first, small, odd = (made[name] for name in plan.names(state)[3:])
    assert (first.name, small.name) == ("agent", "agent-small")
    assert re.fullmatch(r"agent-[A-Za-z0-9_.-]+", odd.name)
    # They would be refused by a service that does not know their pools yet.
    assert "service" in small.after
    assert "service" not in first.after
    given = [json.loads(text) for each in (first, small, odd) for text in each.files.values()]
    assert [one["resource_pool"] for one in given] == ["gpus", "small", "ÅB c/d"]
    assert len({one["work_dir"] for one in given}) == 3
    assert [one["agent_id"] for one in given] == agent.agent_ids(state)
    # A GPU has one agent.
    assert [one["slot_type"] for one in given] == ["cuda", "cpu", "cpu"]
    for one in given:
        AgentConfig.model_validate(one)


def test_the_choice_of_agents_for_other_pools_is_kept(layout):
    assert not resolve(layout).one_agent
    assert resolve(layout, one_agent=True).one_agent
    assert resolve(layout).one_agent
    assert not resolve(layout, one_agent=False).one_agent


def test_agent_counts_as_registered_only_when_heard_of_since_its_start(monkeypatch):
    state = ClusterState(agent_id="me", pool="here")
    answer = {
        "agents": [
            {"id": "other", "registeredTime": "2026-01-01T00:00:30Z", "lastHeartbeat": None},
            {
                "id": "me",
                "state": "STATE_ALIVE",
                "resourcePools": ["here"],
                "registeredTime": "2026-01-01T00:00:00.000000Z",
                "lastHeartbeat": "2026-01-01T00:00:10.500000Z",
            },
        ]
    }
    heard = datetime(2026, 1, 1, 0, 0, 10, 500_000, UTC).timestamp()
    monkeypatch.setattr(agent.probe, "get", lambda url, token: answer)
    assert agent.is_registered(state, since=heard - 5)
    assert not agent.is_registered(state, since=heard + 5)
    moved = state.model_copy(update={"pool": "there"})
    assert not agent.is_registered(moved, since=heard - 5)
    answer["agents"][1]["state"] = "STATE_ENDED"
    assert not agent.is_registered(state, since=heard - 5)
    monkeypatch.setattr(agent.probe, "get", lambda url, token: None)
    assert not agent.is_registered(state, since=0.0)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_disk_that_is_nearly_full_is_said(layout, monkeypatch, is_new):
    def free(size):
        usage = shutil._ntuple_diskusage(2**40, 2**40 - size, size)
        monkeypatch.setattr(notices.shutil, "disk_usage", lambda folder: usage)

    notes = Notes()
    if not is_new:
        resolve(layout)
    free(3 * 2**30)
    notices.look_at_disk(layout, notes)
    assert notes.lines == []
    free(2**30)
    notices.look_at_disk(layout, notes)
    assert f"only 1024 MiB are free at {layout.root}" in notes.lines.pop()
    free(9 * 2**20)
    if is_new:
        with pytest.raises(
            ClusterError, match=r"only 9 MiB are free .* a new cluster needs 200 MiB"
        ):
            notices.look_at_disk(layout, notes)
    else:  # Somebody has to start it to delete something.
        notices.look_at_disk(layout, notes)
        assert "only 9 MiB" in notes.lines.pop()
