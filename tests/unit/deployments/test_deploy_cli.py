"""The commands' arguments and messages; nothing is started."""

import dataclasses
import json
import re

import pytest
from typer.testing import CliRunner

from determined.common.api.token_store import TokenStore
from determined_deployments.cli import app
from determined_deployments.local import state as states
from determined_deployments.local.daemon import PidFile
from determined_deployments.local.layout import Layout
from determined_deployments.local.state import ClusterState


@pytest.fixture
def run(tmp_path):
    def call(*arguments, **kwargs):
        return CliRunner().invoke(
            app, ["local", *arguments], env={"DET_DATA_DIR": str(tmp_path)}, **kwargs
        )

    return call


def test_other_systems_are_told_where_clusters_run(run, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    result = run("cluster-up")
    assert result.exit_code == 1
    assert "Error: agents run on Linux, and this is darwin: use a cluster" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_more_agents_than_the_pool_has(run):
    result = run("cluster-up", "--agents", "2")
    assert result.exit_code == 2
    assert "an agent for each resource pool (each)" in re.sub(r"[\s│]+", " ", result.stderr)


def test_status_of_nothing(run, tmp_path):
    result = run("status")
    assert result.exit_code == 1
    assert "no cluster in" in result.stderr
    assert json.loads(run("status", "--json").stdout) == []


def test_down_of_nothing(run):
    result = run("cluster-down")
    assert result.exit_code == 0
    assert "nothing was running" in result.stderr


def test_down_asks_before_it_deletes(run, tmp_path):
    (tmp_path / "postgres").mkdir()
    result = run("cluster-down", "--delete-db", input="n\n")
    assert result.exit_code == 1
    assert (tmp_path / "postgres").exists()
    assert run("cluster-down", "--delete-db", "--yes").exit_code == 0
    assert not (tmp_path / "postgres").exists()


@pytest.fixture
def installed(run, tmp_path, monkeypatch):
    """A cluster's folder without processes, a login to it, and foreign files."""
    home = tmp_path / "home"
    monkeypatch.setattr("pathlib.Path.home", lambda: home)
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(home / "config"))
    layout = Layout.of(tmp_path)
    layout.create()
    states.save(layout, ClusterState())
    (layout.postgres / "base").mkdir(parents=True)
    (layout.postgres / "base/1").write_bytes(b"x" * 3_000_000)
    (layout.checkpoints / "c").write_text("weights")
    layout.cluster_config.write_text("checkpoint_storage: {type: s3, bucket: b}")
    (tmp_path / "thesis.txt").write_text("mine")
    (home / ".prefect").mkdir(parents=True)
    (home / "mlruns").mkdir()
    TokenStore().set_token("http://127.0.0.1:8080", "determined", "t")
    TokenStore().set_token("http://elsewhere:8080", "ada", "t")
    return layout


def test_uninstall_lists_removed_and_remaining_files(run, installed, tmp_path):
    result = run("uninstall", input="n\n")
    assert result.exit_code == 1
    assert installed.postgres.exists()
    said = result.stderr
    assert f"     3 MB  {installed.postgres}: experiments, metrics, models and users" in said
    assert "the logins of determined at http://127.0.0.1:8080" in said
    assert "Remove all of this for good?" in said

    done = run("uninstall", "--yes")
    assert done.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "thesis.txt"]
    assert TokenStore().users("http://127.0.0.1:8080") == []
    assert TokenStore().users("http://elsewhere:8080") == ["ada"]
    for line in (
        "left: the checkpoint storage s3 b (cluster.yaml names it): remove its files there",
        f"left: {tmp_path}/thesis.txt (no cluster has made it): rm -r {tmp_path}/thesis.txt",
        f"left: {tmp_path}/home/.prefect (Prefect's own: also of other programs that use Prefect): rm -r",
        f"left: {tmp_path}/home/mlruns (MLflow's own: runs of scripts that logged without a server): rm -r",
        "pip uninstall determined-prefect",
    ):
        assert line in done.stderr
    again = run("uninstall")
    assert (again.exit_code, f"no cluster found in {tmp_path}" in again.stderr) == (0, True)


def test_uninstall_may_keep_the_checkpoints(run, installed):
    result = run("uninstall", "--yes", "--keep-checkpoints")
    assert (installed.checkpoints / "c").read_text() == "weights"
    assert not installed.postgres.exists()
    assert f"left: {installed.checkpoints} (as --keep-checkpoints says)" in result.stderr


def test_down_of_another_name_is_refused(run):
    result = run("cluster-down", "--cluster-name", "other")
    assert result.exit_code == 1
    assert "--cluster-name other: the cluster in" in result.stderr


def test_logs_cannot_control_the_terminal(run, monkeypatch):
    line = "experiment '\x1b]0;owned\x07\u202e' \x1b[31mfailed"
    monkeypatch.setattr(
        "determined_deployments.local.read_logs", lambda *a, **k: [("service", line)]
    )
    shown = run("logs", color=True).stdout
    assert shown == "service  experiment '\\x1b]0;owned\\x07\\u202e' \x1b[31mfailed\x1b[0m\n"


def test_logs_of_unknown_tasks_and_users(run):
    result = run("logs")
    assert (result.exit_code, "never started there" in result.stderr) == (1, True)
    result = run("logs", "redis")
    assert (result.exit_code, "unknown component 'redis'" in result.stderr) == (1, True)


def test_damaged_record_is_one_line(run, tmp_path):
    (tmp_path / "cluster.json").write_text("{")
    result = run("status")
    assert result.exit_code == 1
    assert "is damaged" in result.stderr
    assert "Traceback" not in result.output


def test_dead_component_and_where_to_look(run, tmp_path):
    layout = Layout.of(tmp_path)
    layout.create()
    states.save(layout, ClusterState(postgres_port=1))
    layout.postgres.mkdir()
    gone = PidFile(pid=2**22, started=0.0, fingerprint="", marker="")
    layout.pid_file("service").write_text(json.dumps(dataclasses.asdict(gone)))
    result = run("status")
    assert result.exit_code == 1
    assert f"dead (see {layout.log('service')})" in result.stdout
    rows = {row["component"]: row for row in json.loads(run("status", "--json").stdout)}
    assert (rows["service"]["state"], rows["agent"]["state"]) == ("dead", "stopped")


def test_status_says_how_to_log_in_to_prefect(run, tmp_path):
    layout = Layout.of(tmp_path)
    layout.create()
    state = ClusterState(postgres_port=1)
    states.save(layout, state)
    result = run("status")
    assert "user:password; copy it from the field prefect_auth of" in result.stderr
    assert str(tmp_path / "cluster.json") in result.stderr
    for secret in (state.prefect_auth.partition(":")[2], *state.passwords.values()):
        assert secret not in result.output
    assert "prefect_auth" not in run("status", "--json").output
