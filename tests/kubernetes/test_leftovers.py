"""What the chart's hook after an uninstall removes, over the stand-in of Kubernetes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from determined_deployments.agent.launchers.kubernetes import labels, leftovers
from determined_deployments.agent.launchers.kubernetes.client import ApiError, Client
from tests.kubernetes.standin.running import StandIn, running
from tests.kubernetes.test_launcher import NEW, OLD, agent_of
from tests.waiting import TIMEOUT_S, until

NAMESPACE = "default"


def remove(standin: StandIn, *targets: str) -> subprocess.CompletedProcess[str]:
    """As the hook's Job runs it."""
    return subprocess.run(
        [sys.executable, "-P", "-m", leftovers.__name__, *targets],
        env={**os.environ, "KUBECONFIG": str(standin.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def names(standin: StandIn, plural: str) -> list[str]:
    found = standin.do(lambda cluster: cluster.store.select(plural, NAMESPACE))
    return sorted(str(one["metadata"]["name"]) for one in found)


def add(standin: StandIn, plural: str, name: str, thing: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"metadata": {"name": name, "namespace": NAMESPACE, **thing}}
    if plural == "jobs":
        complete = {"type": "Complete", "status": "True"}
        whole |= {"spec": {"template": {}}, "status": {"conditions": [complete]}}
    standin.do(lambda cluster: cluster.store.create(plural, whole))


def _owned_by(standin: StandIn, job: str) -> dict[str, Any]:
    found = standin.do(lambda cluster: cluster.store.get("jobs", NAMESPACE, job))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": found["metadata"]["uid"]}
    return {"ownerReferences": [owner]}


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_tasks_of_an_agent_end_and_those_of_another_go_on(
    version: str, tmp_path: Path
) -> None:
    of_other = {"labels": {labels.AGENT: labels.value("other")}}
    with running(version) as standin:
        standin.do(lambda cluster: cluster.add_node("node-a", {"cpu": "4"}))
        add(standin, "secrets", "of-other", of_other)
        add(standin, "secrets", "of-nobody", {})
        for worker in ("k", "other"):
            add(standin, "jobs", f"run-of-{worker}", {"labels": {labels.WORKER: worker}})
            add(
                standin, "secrets", f"variables-of-{worker}", _owned_by(standin, f"run-of-{worker}")
            )
        async with agent_of(standin, tmp_path) as agent:
            await agent.begun()
        # The agent has ended, and its task goes on.
        assert len(names(standin, "pods")) == 1
        assert len(names(standin, "jobs")) == 3
        assert len(names(standin, "secrets")) == 5

        done = remove(standin, f"{NAMESPACE}/other-one", f"{NAMESPACE}/k")
        assert done.returncode == 0, done.stderr
        assert f"removed from {NAMESPACE}: the Jobs and Secrets of the agent k\n" in done.stdout
        for plural, left in (
            ("jobs", ["run-of-other"]),
            ("pods", []),
            ("secrets", ["of-nobody", "of-other", "variables-of-other"]),
        ):
            until(f"the {plural}", lambda: names(standin, plural), equals=left)  # noqa: B023
        # A second try of the Job finds nothing to do.
        assert remove(standin, f"{NAMESPACE}/k").returncode == 0


def test_what_is_refused_stays_and_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other namespaces are done all the same."""

    async def request(self: Client, method: str, path: str, **given: Any) -> dict[str, Any]:
        if "/closed/" in path:
            raise ApiError(403, "Forbidden", "jobs.batch is forbidden")
        return {}

    monkeypatch.setattr(Client, "request", request)
    with running(NEW) as standin:
        monkeypatch.setenv("KUBECONFIG", str(standin.kubeconfig))
        with pytest.raises(SystemExit) as raised:
            leftovers.main(["closed/a", "open/b"])
    assert str(raised.value) == (
        "Jobs and Secrets of the agent a may be left in closed: jobs.batch is forbidden; remove them:"
        f" kubectl -n closed delete jobs,secrets -l {labels.AGENT}=a"
    )
    assert capsys.readouterr().out == "removed from open: the Jobs and Secrets of the agent b\n"


@pytest.mark.parametrize("targets", [[], ["namespace-alone"]])
def test_targets_are_namespaces_with_agents(targets: list[str]) -> None:
    with pytest.raises(SystemExit, match="expected NAMESPACE/AGENT"):
        leftovers.main(targets)
