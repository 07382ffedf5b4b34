"""Makes findings of the facts: OK, WARNING or FAILED, what was found, and what to do. No I/O."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from determined.cli.doctor.facts import Facts
from determined.cli.output import format as f
from determined.common.printable import counted
from determined.common.wire import agents
from determined.common.wire.disk import LITTLE_BYTES, TOO_LITTLE_BYTES

Status = Literal["OK", "WARNING", "FAILED"]

CLOCK_S = 2.0
"""If two clocks differ by more than this, the times of logs and metrics look wrong."""
OUTBOX_S = 60.0
GONE_S = 86400.0
BUSY = "it may be busy or starting: try again in a moment"
UP = "det deploy local cluster-up"


@dataclass(frozen=True)
class Diagnosis:
    """One line of the doctor's output. ``advice`` says what to do; None if there is nothing to do."""

    check: str
    status: Status
    found: str
    advice: str | None = None


def judge(facts: Facts) -> list[Diagnosis]:
    """Every finding, in the order in which the parts depend on each other."""
    findings = [*_postgres(facts), *_prefect(facts), *_service(facts), *_agents(facts)]
    if facts.report is not None:
        findings += [*_pools(facts.report), *_storage(facts.report), *_stuck(facts.report)]
    return [*findings, *_versions(facts), *_clocks(facts), *_disks(facts)]


def _component(facts: Facts, name: str) -> dict[str, Any] | None:
    """The local cluster's process of that name; None if there is none."""
    for each in (facts.local.components if facts.local else None) or []:
        if each["component"] == name:
            return each
    return None


_NEEDS = {
    "postgres": (),
    "prefect": ("postgres",),
    "service": ("postgres",),
    "agent": ("postgres", "prefect", "service"),
}


def _missing(facts: Facts, name: str) -> list[str]:
    """The processes that the local process ``name`` needs and that do not run."""
    known = {need: _component(facts, need) for need in _NEEDS.get(name, _NEEDS["agent"])}
    return [need for need, process in known.items() if process and process["state"] != "running"]


def _down(facts: Facts, name: str) -> Diagnosis | None:
    """The finding about a local process that does not run or does not answer; None if it does."""
    process = _component(facts, name)
    if process is None or process["state"] == "running":
        return None
    log = f"; see the end of its log, {process['log']}" if process.get("log") else ""
    if process["state"] == "starting":
        found = f"its process (pid {process.get('pid')}) is running but does not answer"
        missing = _missing(facts, name)
        if missing:
            advice = f"it waits for {', '.join(missing)} and then continues by itself"
            return Diagnosis(name, "WARNING", found, advice)
        advice = (
            f"wait a moment if it was just started; otherwise run `kill -9 {process.get('pid')}`"
            f" and `{UP}`{log}"
        )
        return Diagnosis(name, "FAILED", found, advice)
    found = {
        "dead": "its process ended without `det deploy local cluster-down`",
        "stopped": "it is not running",
    }[process["state"]]
    return Diagnosis(name, "FAILED", found, f"`{UP}` starts it again; nothing is lost{log}")


def _postgres(facts: Facts) -> Iterator[Diagnosis]:
    down = _down(facts, "postgres")
    if down is not None:
        yield down
    elif facts.report is not None:
        known = facts.report["postgres"]
        found = (
            f"version {known['version']}, schema {known['revision']},"
            f" {f.size(known['sizeBytes'])} of data"
        )
        if known["revision"] != known["revisionWanted"]:
            found = (
                f"its schema is {known['revision']}, the service needs {known['revisionWanted']}"
            )
            advice = "restart the service, which brings the schema up to date"
            yield Diagnosis("postgres", "FAILED", found, advice)
        else:
            yield Diagnosis("postgres", "OK", found)
    elif "database" in facts.not_ready:
        advice = (
            "check that Postgres runs and accepts connections from the service; the service then"
            " continues by itself"
        )
        yield Diagnosis("postgres", "FAILED", facts.not_ready["database"], advice)
    elif _component(facts, "postgres") is not None:
        yield Diagnosis("postgres", "OK", "runs and answers")


def _prefect(facts: Facts) -> Iterator[Diagnosis]:
    known = (facts.report or {}).get("prefect")
    down = _down(facts, "prefect")
    advice = "running trials continue; new trials wait until Prefect's server answers again"
    if down is not None:
        yield down
    elif known is not None and known["problem"]:
        yield Diagnosis("prefect", "FAILED", f"{known['url']}: {known['problem']}", advice)
    elif known is not None:
        yield Diagnosis("prefect", "OK", f"version {known['version']} answers at {known['url']}")
    elif "prefect" in facts.not_ready:
        yield Diagnosis("prefect", "FAILED", facts.not_ready["prefect"], advice)
    elif facts.local is not None and facts.local.prefect_problem:
        found = f"{facts.local.prefect_url}: {facts.local.prefect_problem}"
        missing = _missing(facts, "prefect")
        if missing:
            waits = f"it waits for {', '.join(missing)} and then continues by itself"
            yield Diagnosis("prefect", "WARNING", found, waits)
        else:
            yield Diagnosis("prefect", "FAILED", found, advice)
    elif facts.local is not None:
        yield Diagnosis("prefect", "OK", f"answers at {facts.local.prefect_url}")


def _service(facts: Facts) -> Iterator[Diagnosis]:
    if facts.master is None:
        advice = f"{BUSY}; else {_how_to_reach(facts)}" if facts.is_slow else _how_to_reach(facts)
        yield _down(facts, "service") or Diagnosis(
            "service", "FAILED", str(facts.service_problem), advice
        )
        return
    if not facts.is_meant:
        found = f"another cluster or another program answers at {facts.url}"
        yield Diagnosis("service", "FAILED", found, _how_to_reach(facts))
        return
    found = f"version {facts.master.get('version')} answers at {facts.url}"
    if "service" in facts.not_ready:
        advice = f"{BUSY}; if nothing changes, look at the service's log"
        yield Diagnosis("service", "WARNING", f"{found}, but {facts.not_ready['service']}", advice)
    elif facts.report is None and "database" in facts.not_ready:
        advice = "it waits for Postgres and then continues by itself"
        yield Diagnosis("service", "WARNING", f"{found}, but it is not ready", advice)
    elif facts.report_problem is not None:
        advice = f"{BUSY}; if nothing changes, look at the service's log"
        if facts.needs_login:
            advice = "log in (`det user login`)"
        advice += "; meanwhile the service's own checks are left out"
        yield Diagnosis("service", "WARNING", f"{found}; {facts.report_problem}", advice)
    elif facts.report is not None and not facts.report["postgres"]["isLed"]:
        advice = "wait 10 s and try again; if nothing changes, restart the service"
        found += ", but no service process is the leader, so nothing is scheduled"
        yield Diagnosis("service", "FAILED", found, advice)
    else:
        yield Diagnosis("service", "OK", found)


def _how_to_reach(facts: Facts) -> str:
    if facts.local is not None:
        return f"run `{UP}`; `det deploy local logs service` shows the service's log"
    return (
        f"check that the service runs at {facts.url}, or give another address with -m URL or"
        " DET_MASTER"
    )


_PROGRAMS = {
    agents.JUPYTERLAB: "JupyterLab for det notebook",
    agents.TENSORBOARD: "TensorBoard for det tensorboard",
    agents.SSHD: "sshd for scp, rsync and VS Code in shells",
    agents.MOUNTS: "right to mount bind_mounts and shm_size",
}


def _agents(facts: Facts) -> Iterator[Diagnosis]:
    down = _down(facts, "agent")
    if down is not None:
        yield down
    for each in (facts.local.components if facts.local else None) or ():
        # Of the other resource pools of a local cluster.
        if each["component"].startswith("agent-") and (other := _down(facts, each["component"])):
            yield other
    if facts.report is None:
        if down is None and _component(facts, "agent") is not None:
            yield Diagnosis("agent", "OK", "its process is running")
        return
    # One that has ended is left out, and one that was silent for a day: its machine was taken away.
    known = [
        agent
        for agent in facts.report["agents"]
        if agent["state"] != "STATE_ENDED" and agent["silentS"] < GONE_S
    ]
    alive = [agent for agent in known if agent["state"] == "STATE_ALIVE"]
    if not alive and down is None:
        advice = f"start one (`{UP}`, docs/operate/agent.md); until then every trial waits"
        none = {0: "there is no agent", 1: "the only agent is not alive"}
        found = none.get(len(known), f"none of {len(known)} agents is alive")
        yield Diagnosis("agent", "FAILED", found, advice)
    for agent in known:
        name = f"agent {agent['id']}"
        found = (
            f"{counted(agent['slots'], 'slot')} in resource pool {agent['resourcePool']},"
            f" {counted(agent['allocations'], 'allocation')},"
            f" last heartbeat {max(agent['silentS'], 0):.0f} s ago"
        )
        if agent["state"] == "STATE_SILENT":
            advice = (
                "start it again (docs/operate/agent.md); if its machine is gone, an administrator takes it"
                f" off the list: det agent remove {agent['id']}"
            )
            found = f"nothing is heard of it for {f.duration(max(agent['silentS'], 0))}"
            yield Diagnosis(name, "WARNING", found, advice)
        elif not agent["enabled"] or agent["draining"]:
            how = "draining" if agent["draining"] else "disabled"
            yield Diagnosis(name, "WARNING", f"{how}: it gets no new work; {found}")
        else:
            yield Diagnosis(name, "OK", found)
    lacking = [agent for agent in alive if agent.get("lacks")]
    if lacking:
        # Who uses none of these misses nothing.
        found = "; ".join(_lacks(agent) for agent in lacking)
        yield Diagnosis("programs", "OK", found)


def _lacks(agent: dict[str, Any]) -> str:
    """``agent a1 has no JupyterLab for notebooks (pip install …)``."""
    each = (f"no {_PROGRAMS.get(one, one)} ({how})" for one, how in sorted(agent["lacks"].items()))
    return f"agent {agent['id']} has {', '.join(each)}"


def _pools(report: dict[str, Any]) -> Iterator[Diagnosis]:
    """Pools without an agent; where no pool has one, :func:`_agents` has said so."""
    if not any(pool["agents"] for pool in report["pools"]):
        return
    for pool in report["pools"]:
        if pool["agents"]:
            continue
        found = "it has no agent: what is sent there waits"
        if pool["waiting"]:
            found += f" ({pool['waiting']} wait{'s' if pool['waiting'] == 1 else ''} now)"
        advice = f"start one: det agent start --pool {shlex.quote(pool['name'])}"
        yield Diagnosis(f"resource pool {pool['name']}", "WARNING", found, advice)


def _storage(report: dict[str, Any]) -> Iterator[Diagnosis]:
    known = report["checkpointStorage"]
    name = "checkpoint storage"
    if known is None:
        found = "the cluster has no default; each experiment sets its checkpoint_storage"
        yield Diagnosis(name, "OK", found)
    elif known["problem"]:
        where = f"{known['path']}: " if known.get("path") else ""
        advice = (
            "trials cannot save checkpoints: install what is missing, free some space, or give the service"
            " and the agents write permission"
        )
        yield Diagnosis(name, "FAILED", f"{where}{known['problem']}", advice)
    elif not known["tried"]:
        found = "the service's machine does not have it; each trial checks it when it starts"
        yield Diagnosis(name, "OK", found)
    else:
        found = f"wrote, read and deleted a file in {known['path']} ({known['type']})"
        yield Diagnosis(name, "OK", found)
        if known["disk"] is not None:
            yield _disk(f"{name} space", known["disk"])


def _stuck(report: dict[str, Any]) -> Iterator[Diagnosis]:
    nothing = True
    for item in report["stuck"]["searches"]:
        nothing = False
        found = f"no flow has driven its search for {f.duration(item['forS'])}"
        advice = (
            f"see `det e describe {item['experimentId']}`; the service restarts a lost flow by itself"
            " as long as an agent and Prefect are running"
        )
        yield Diagnosis(f"experiment {item['experimentId']}", "WARNING", found, advice)
    for kind, words in (
        ("notStarted", "got slots on {agentId} {ago} ago, but its process is not running yet"),
        ("notEnded", "should have been killed on {agentId} {ago} ago, but has not ended"),
    ):
        for item in report["stuck"][kind]:
            nothing = False
            found = words.format(agentId=item["agentId"], ago=f.duration(item["forS"]))
            if item.get("waitsFor"):
                found += f": {item['waitsFor']}"
            advice = (
                f"look at the log of agent {item['agentId']} (its fork server may not be ready);"
                " an agent that is restarted continues its work"
            )
            yield Diagnosis(f"allocation {item['allocationId']}", "WARNING", found, advice)
    # A service of the release before knows none.
    for item in report["stuck"].get("unplaced", ()):
        nothing = False
        found = f"the cluster of resource pool {item['resourcePool']} did not place it"
        found += f" {counted(item['times'], 'time')} in a row: {item['reason']}"
        advice = (
            "it waits in the queue and is tried again; if no machine ever has what it asks for, change"
            " resources or environment.pod_spec of its configuration"
        )
        yield Diagnosis(f"allocation {item['allocationId']}", "WARNING", found, advice)
    for item in report["stuck"]["notDeleted"]:
        nothing = False
        found = f"could not be deleted: {item['reason'] or 'no reason was recorded'}"
        advice = f"remove the cause, then repeat `det e delete {item['experimentId']}`"
        yield Diagnosis(f"experiment {item['experimentId']}", "WARNING", found, advice)
    outbox = report["outbox"]
    if outbox["waiting"] and outbox["oldestS"] > OUTBOX_S:
        nothing = False
        why = f": {outbox['lastError']}" if outbox["lastError"] else ""
        have = "has" if outbox["waiting"] == 1 else "have"
        found = (
            f"{counted(outbox['waiting'], 'change')} {have} not reached Prefect yet, the oldest waits for"
            f" {f.duration(outbox['oldestS'])}{why}"
        )
        advice = "check that Prefect's server answers; until then only Prefect's UI is out of date"
        yield Diagnosis("outbox", "WARNING", found, advice)
    if nothing:
        waiting = f"{counted(outbox['waiting'], 'change')} on the way to Prefect"
        yield Diagnosis("stuck", "OK", f"every search has its flow, nothing hangs; {waiting}")


def _versions(facts: Facts) -> Iterator[Diagnosis]:
    found = {f"this det {facts.client_version}": facts.client_version}
    if facts.master is not None and facts.is_meant:
        service = str(facts.master.get("version"))
        found[f"service {service}"] = service
    for agent in (facts.report or {}).get("agents", ()):
        if agent["state"] == "STATE_ALIVE" and agent["version"]:
            found[f"agent {agent['id']} {agent['version']}"] = agent["version"]
    text = ", ".join(found)
    if len(set(found.values())) > 1:
        advice = "install the same version everywhere (service first, then agents and clients)"
        yield Diagnosis("versions", "WARNING", text, advice)
    else:
        yield Diagnosis("versions", "OK", text)


def _clocks(facts: Facts) -> Iterator[Diagnosis]:
    if facts.service_ahead_s is None or facts.report is None:
        return
    far = []
    pairs = (
        ("the service's", "this machine's", facts.service_ahead_s, facts.uncertainty_s),
        ("Postgres'", "the service's", facts.report["postgres"]["aheadS"], 0.0),
    )
    for whose, others, ahead, uncertainty in pairs:
        if abs(ahead) > CLOCK_S + uncertainty:
            how = "ahead of" if ahead > 0 else "behind"
            far.append(f"{whose} clock is {f.duration(abs(ahead))} {how} {others}")
    if far:
        advice = (
            "synchronize the clocks with NTP; until then the times of logs and metrics look wrong"
        )
        yield Diagnosis("clocks", "WARNING", "; ".join(far), advice)
    else:
        found = f"this machine, the service and Postgres agree within {CLOCK_S:.0f} s"
        yield Diagnosis("clocks", "OK", found)


def _disks(facts: Facts) -> Iterator[Diagnosis]:
    # The service's disk is shown only if the service runs on another machine.
    disk = facts.local.disk if facts.local else (facts.report or {}).get("disk")
    if disk is None:
        return
    if disk.get("problem"):
        yield Diagnosis("data directory", "FAILED", disk["problem"], "check that it is mounted")
    else:
        yield _disk("data directory", disk)


def _disk(name: str, disk: dict[str, Any]) -> Diagnosis:
    free = disk["freeBytes"]
    found = f"{f.size(free)} free of {f.size(disk['totalBytes'])} at {disk['path']}"
    advice = "delete old experiments (`det e delete`), or move the data to a larger disk"
    if free < TOO_LITTLE_BYTES:
        return Diagnosis(name, "FAILED", found, advice)
    if free < LITTLE_BYTES:
        return Diagnosis(name, "WARNING", found, advice)
    return Diagnosis(name, "OK", found)
