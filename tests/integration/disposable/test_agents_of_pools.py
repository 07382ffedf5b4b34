"""A local cluster whose configuration has several resource pools: an agent for each, or a word about it."""

from __future__ import annotations

from pathlib import Path

from determined_deployments.local import agent
from determined_deployments.local import state as states
from determined_deployments.local.layout import Layout
from tests.local_cluster import LocalCluster
from tests.waiting import until

# As in docs/operate/cluster-config.md.
POOLS = """
resource_manager: {default_compute_resource_pool: gpus, default_aux_resource_pool: small}
resource_pools:
  - pool_name: gpus
  - {pool_name: small, scheduler: {type: fair_share}}
"""
ONE = """
resource_manager: {default_compute_resource_pool: gpus, default_aux_resource_pool: gpus}
resource_pools: [{pool_name: gpus}]
"""


def doctor(cluster: LocalCluster) -> dict[str, str]:
    found = cluster.json("cluster", "doctor")
    return {one["check"]: f"{one['status']} {one['found']} {one['advice']}" for one in found}


def test_every_pool_has_an_agent_or_it_is_said(tmp_path: Path) -> None:
    with LocalCluster.running(config=POOLS) as cluster:
        # Only one agent was asked for.
        start = "det agent start --pool small"
        said = " ".join(cluster.up().stderr.split())
        assert "resource pool small has no agent: its tasks wait" in said
        assert start in said
        assert doctor(cluster)["resource pool small"].startswith("WARNING it has no agent")
        run = ("command", "run", "--config", "resources.slots=0", "-d", "echo", "done")
        launched = cluster.det(*run)
        assert "resource pool 'small' has no agent now" in launched.stderr
        assert start in launched.stderr
        task = launched.stdout.strip()
        job = cluster.json("command", "describe", task)["jobId"]
        assert start in cluster.det("job", "explain", job).stdout

        cluster.up("--agents", "each")
        until(
            "the command's end",
            lambda: cluster.json("command", "describe", task)["state"] == "STATE_TERMINATED",
        )
        assert "done" in cluster.det("command", "logs", task).stdout
        assert "resource pool small" not in doctor(cluster)
        pools = {each["id"]: each["resourcePools"] for each in cluster.json("agent", "list")}
        state = states.load(Layout.of(cluster.data_dir))
        assert state is not None
        assert pools == {state.agent_id: ["gpus"], f"{state.agent_id}.small": ["small"]}

        # A pool with work stays, and its work is not disturbed.
        given = tmp_path / "one.yaml"
        given.write_text(ONE)
        apply = ("deploy", "local", "cluster-up", "--config", str(given))
        sleeps = cluster.det(*run[:-2], "sleep", "600").stdout.strip()
        until(
            "the command's start",
            lambda: cluster.json("command", "describe", sleeps)["state"] == "STATE_RUNNING",
        )
        refused = cluster.det(*apply, check=False)
        assert refused.returncode == 1
        assert "'small' cannot be removed, because it has 1 task" in refused.stderr
        assert cluster.json("command", "describe", sleeps)["state"] == "STATE_RUNNING"
        assert {each["state"] for each in cluster.json("agent", "list")} == {"STATE_ALIVE"}
        cluster.det("command", "kill", sleeps)
        until(
            "the command's end",
            lambda: cluster.json("command", "describe", sleeps)["state"] == "STATE_TERMINATED",
        )

        # The pool leaves the configuration, and its agent ends.
        cluster.det(*apply)
        gone = {each["id"]: each["state"] for each in cluster.json("agent", "list")}
        assert gone == {state.agent_id: "STATE_ALIVE", f"{state.agent_id}.small": "STATE_ENDED"}
        assert len(cluster.json("resource-pool", "list")) == 1

        # And back, to see that everything is stopped.
        given.write_text(POOLS)
        cluster.det(*apply)
        layout = Layout.of(cluster.data_dir)
        assert agent.daemon.running(layout, "agent-small") is not None
        cluster.down()
        assert agent.daemon.running(layout, "agent-small") is None
        assert list(agent.daemon.members(state.marker)) == []
