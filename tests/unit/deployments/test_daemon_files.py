"""Pid files, logs, and the environment of daemons."""

import json
import os
import stat
import sys

import psutil

from determined_deployments.local import daemon
from determined_deployments.local.component import Component
from determined_deployments.local.daemon import PidFile
from determined_deployments.local.layout import Layout
from determined_deployments.local.logs import Follower


def component(**changes):
    return Component(
        **{"name": "x", "argv": ("x",), "is_ready": lambda: True, "url": "", **changes}
    )


def test_pid_file_of_a_reused_pid_is_stale():
    started = psutil.Process().create_time()
    assert daemon.alive(PidFile(os.getpid(), started, "", "nobody"))
    assert daemon.alive(PidFile(os.getpid(), started - 3600, "", "nobody")) is None


def test_clock_change_is_told_from_a_reused_pid_by_the_marker(monkeypatch):
    monkeypatch.setattr(daemon, "_variable", lambda process, name: "cluster-1")
    started = psutil.Process().create_time() - 3600
    assert daemon.alive(PidFile(os.getpid(), started, "", "cluster-1"))
    assert daemon.alive(PidFile(os.getpid(), started, "", "cluster-2")) is None


def test_damaged_pid_file_counts_as_none(tmp_path):
    layout = Layout.of(tmp_path)
    layout.create()
    for text in ("", "{", "[1]", json.dumps({"pid": 1})):
        layout.pid_file("x").write_text(text)
        assert daemon.running(layout, "x") is None


def test_the_folders_are_closed(tmp_path):
    layout = Layout.of(tmp_path / "data")
    before = os.umask(0)
    try:
        layout.create()
    finally:
        os.umask(before)
    closed = [layout.checkpoints, layout.lock.parent, layout.log("x").parent]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in closed] == [0o700] * 3
    # Of an earlier release; and opened on purpose, for tasks under separate accounts.
    for found, left in ((0o755, 0o700), (0o1777, 0o1777)):
        layout.checkpoints.chmod(found)
        layout.create()
        assert stat.S_IMODE(layout.checkpoints.stat().st_mode) == left


def test_a_daemons_files_are_private(tmp_path):
    layout = Layout.of(tmp_path)
    layout.create()
    code = "import os; os.mkdir('made'); open('made/file', 'w').close()"
    started = daemon.start(layout, component(argv=(sys.executable, "-c", code)), "marker")
    assert started.wait() == 0
    made = tmp_path / "made"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE((made / "file").stat().st_mode) == 0o600


def test_daemons_do_not_inherit_settings_for_other_servers(monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "https://elsewhere")
    monkeypatch.setenv("DET_MASTER", "https://elsewhere")
    monkeypatch.setenv("no_proxy", "intranet")
    monkeypatch.setenv("KEPT", "yes")
    made = daemon.environment(component(env={"DET_AGENT_CONFIG": "/a"}), "cluster-1")
    assert "PREFECT_API_URL" not in made
    assert "DET_MASTER" not in made
    assert made["KEPT"] == "yes"
    assert made["no_proxy"] == "intranet,127.0.0.1,localhost"
    assert made["DET_AGENT_CONFIG"] == "/a"
    assert made["DETERMINED_LOCAL_CLUSTER"] == "cluster-1"
    # Nothing of the cluster reports its use to the makers of Prefect and MLflow.
    assert (made["DO_NOT_TRACK"], made["MLFLOW_DISABLE_TELEMETRY"]) == ("true", "true")
    assert made["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def test_tail(tmp_path):
    path = tmp_path / "log"
    assert daemon.tail(path, 3) == ""
    path.write_bytes(b"one\ntwo\nthr\xffee\n")
    assert daemon.tail(path, 2) == "two\nthr\ufffdee"
    assert daemon.tail(path, 0) == ""


def test_follower_yields_whole_lines_once_and_survives_rotation(tmp_path):
    path = tmp_path / "log"
    path.write_text("old\n")
    follower = Follower(path)
    assert follower.lines() == []
    with path.open("a") as file:
        file.write("new\nhal")
        file.flush()
        assert follower.lines() == ["new"]
        file.write("f\n")
        file.flush()
        assert follower.lines() == ["half"]
    path.rename(tmp_path / "log.1")
    path.write_text("fresh\n")
    assert follower.lines() == ["fresh"]


def test_large_log_is_set_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "LOG_LIMIT", 10)
    path = tmp_path / "x.log"
    for text in (b"0123456789", b"+", b"new"):
        with daemon._open_log(path) as file:
            file.write(text)
    assert path.read_bytes() == b"new"
    assert (tmp_path / "x.log.1").read_bytes() == b"0123456789+"
