"""The conditions that must hold after all faults have stopped."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

from determined import expconf
from determined.storage.directory import DirectoryStorageManager
from determined_searchers import simulate
from tests.chaos.load import SAVE_EVERY
from tests.chaos.nodes import Nodes
from tests.chaos.world import World, docker

END_OF_LEGS_S = 120.0
"""How long the containers and files of legs whose end was told may take to go."""
SETTLE_S = 150.0
"""How long Prefect may take to be told the rest."""


@dataclass
class Verdict:
    """``wrong``: the violations found, as sentences. The other fields count the checked rows."""

    wrong: list[str] = field(default_factory=list)
    experiments: int = 0
    trials: int = 0
    legs: int = 0
    reports: int = 0
    lines: int = 0
    checkpoints: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """Of the legs, by pool and state."""

    def expect(self, condition: bool, words: str) -> None:
        if not condition:
            self.wrong.append(words)


def judge(world: World) -> Verdict:
    """Compares all experiments with runs in which nothing happens."""
    verdict = Verdict()
    with world.database() as conn:
        experiments = conn.execute(
            "SELECT id, name, state, reason, config FROM experiments ORDER BY id"
        ).fetchall()
        for id_, name, state, reason, config in experiments:
            verdict.experiments += 1
            where = f"experiment {id_} ({name})"
            verdict.expect(state == "COMPLETED", f"{where} is {state}: {reason}")
            _judge_trials(conn, verdict, where, id_, config)
            _judge_events(conn, verdict, where, id_)
        verdict.ends = Counter(
            {
                f"{pool} {state}": count
                for pool, state, count in conn.execute(
                    "SELECT a.resource_pool, l.state, count(*) FROM legs l"
                    " JOIN allocations a ON a.id = l.allocation_id"
                    " WHERE a.trial_id IS NOT NULL GROUP BY 1, 2"
                )
            }
        )
        _judge_checkpoints(conn, verdict, world)
        _judge_leftovers(conn, verdict, world)
    _judge_prefect(verdict, world)
    return verdict


def _judge_trials(conn: Any, verdict: Verdict, where: str, id_: int, config: Any) -> None:
    rows = conn.execute(
        "SELECT id, request_id, hparams, seed, state, reason, run_count, steps_completed"
        " FROM trials WHERE experiment_id = %s ORDER BY id",
        (id_,),
    ).fetchall()
    expected = simulate(expconf.complete_search(config)).trials
    found = [(row[1], row[2], row[3]) for row in rows]
    verdict.expect(
        found == [(trial.request_id, trial.hparams, trial.seed) for trial in expected],
        f"{where}: not the trials of an unbroken run",
    )
    for trial, _, hparams, _, state, reason, run_count, steps in rows:
        verdict.trials += 1
        verdict.legs += run_count
        what = f"{where}, trial {trial}"
        verdict.expect(state == "COMPLETED", f"{what} is {state}: {reason}")
        _judge_metrics(conn, verdict, what, trial, hparams["a"], steps)
        _judge_logs(conn, verdict, what, trial)


def _judge_metrics(
    conn: Any, verdict: Verdict, what: str, trial: int, a: float, steps: int
) -> None:
    rows = conn.execute(
        "SELECT group_name, steps_completed, metrics FROM metrics"
        " WHERE trial_id = %s AND NOT archived ORDER BY steps_completed",
        (trial,),
    ).fetchall()
    verdict.reports += len(rows)
    training = [row[1] for row in rows if row[0] == "training"]
    verdict.expect(training == list(range(1, steps + 1)), f"{what}: training reports of {training}")
    validation = [row[1] for row in rows if row[0] == "validation"]
    lengths = {
        length
        for (length,) in conn.execute(
            "SELECT (event ->> 'length')::int FROM search_events e JOIN trials t"
            " ON t.experiment_id = e.experiment_id AND e.event ->> 'request_id' = t.request_id"
            " WHERE t.id = %s AND event ->> 'type' = 'validation_completed'",
            (trial,),
        )
    }
    due = sorted({step for step in training if step % SAVE_EVERY == 0} | lengths)
    verdict.expect(validation == due, f"{what}: validations of {validation}, not of {due}")
    for group, step, metrics in rows:
        value = metrics["loss" if group == "training" else "x"]
        verdict.expect(value == a + 1 / step, f"{what}: {group} {step} is {value}")


def _judge_logs(conn: Any, verdict: Verdict, what: str, trial: int) -> None:
    """Of each leg the lines from the first on: none missing in between, none twice."""
    lines: dict[str, list[int]] = {}
    for (log,) in conn.execute(
        "SELECT l.log FROM task_logs l JOIN allocations a ON a.id = l.allocation_id"
        " WHERE a.trial_id = %s AND l.stdtype = 'stdout' ORDER BY l.id",
        (trial,),
    ):
        words = bytes(log).decode().split()
        if len(words) == 4 and words[0] == "leg" and words[2] == "line":
            lines.setdefault(words[1], []).append(int(words[3]))
    for leg, numbers in lines.items():
        verdict.lines += len(numbers)
        verdict.expect(
            numbers == list(range(len(numbers))), f"{what}, leg {leg}: log lines {numbers}"
        )


def _judge_events(conn: Any, verdict: Verdict, where: str, id_: int) -> None:
    """Each operation was completed once, each trial made and closed once."""
    events = Counter(
        (event["type"], event["request_id"], event.get("length"))
        for (event,) in conn.execute(
            "SELECT event FROM search_events WHERE experiment_id = %s", (id_,)
        )
        if event["type"] in ("trial_created", "validation_completed", "trial_closed")
    )
    twice = [event for event, count in events.items() if count > 1]
    verdict.expect(not twice, f"{where}: more than once: {twice}")


def _judge_checkpoints(conn: Any, verdict: Verdict, world: World) -> None:
    """Listed checkpoints exist and are whole, deleted ones are gone, and the storage has no other files."""
    storage = DirectoryStorageManager(world.storage)
    target = world.folder / "verified"
    known = set(world.damaged)
    for uuid, state, reason, steps in conn.execute(
        "SELECT uuid::text, state, reason, (metadata ->> 'steps_completed')::int FROM checkpoints"
    ):
        verdict.checkpoints += 1
        if state == "DELETED":
            continue
        known.add(uuid)
        if uuid in world.damaged:
            continue
        verdict.expect(state == "COMPLETED", f"checkpoint {uuid} is {state}: {reason}")
        try:
            storage.download(uuid, target / uuid, None)
            content = (target / uuid / "step").read_text()
            verdict.expect(content == str(steps), f"checkpoint {uuid}: step {content}, not {steps}")
        except Exception as error:
            verdict.wrong.append(f"checkpoint {uuid}: {type(error).__name__}: {error}")
    (cluster,) = conn.execute("SELECT id::text FROM cluster").fetchone()
    known.add(cluster)
    left = sorted({path.name for path in world.storage.iterdir()} - known)
    verdict.expect(not left, f"in the storage, and nobody's: {left}")
    # Beside the checkpoints: charts, of trials that there are.
    charts = {
        path.relative_to(world.storage).as_posix()
        for path in world.storage.glob(f"{cluster}/*/*/*/*/*")
    }
    trials = {
        f"{cluster}/tensorboard/experiment/{experiment}/trial/{trial}"
        for experiment, trial in conn.execute("SELECT experiment_id, id FROM trials")
    }
    verdict.expect(charts <= trials, f"in the storage, and no trial's: {sorted(charts - trials)}")


def _judge_leftovers(conn: Any, verdict: Verdict, world: World) -> None:
    held = conn.execute(
        "SELECT id, state, agent_id FROM allocations WHERE state <> 'TERMINATED'"
    ).fetchall()
    verdict.expect(not held, f"allocations that have not ended: {held}")
    deadline = time.monotonic() + 30
    left = _training_processes(world)
    while left and time.monotonic() < deadline:
        time.sleep(0.5)
        left = _training_processes(world)
    verdict.expect(not left, f"processes of ended trials: {left}")
    # The supervisor reports a leg's end before it removes the container and files, which may take a busy
    # engine long.
    deadline = time.monotonic() + END_OF_LEGS_S
    for agent in world.agents:
        while agent.legs() and time.monotonic() < deadline:
            time.sleep(0.5)
        legs = [record.allocation_id for record in agent.legs()]
        verdict.expect(not legs, f"{agent.name} still knows of {legs}")
    if world.engine is not None:
        _judge_engine(verdict)
    if world.nodes is not None:
        _judge_namespace(verdict, world.nodes, deadline)


def _judge_namespace(verdict: Verdict, nodes: Nodes, deadline: float) -> None:
    """No Job, pod or Secret of ours, and nothing that runs in a pod."""

    def left() -> list[str]:
        return nodes.left() + [f"process {pid}" for pid in nodes.processes()]

    while left() and time.monotonic() < deadline:
        time.sleep(0.5)
    found = left()
    verdict.expect(not found, f"in the namespace, and left: {found}")


def _judge_engine(verdict: Verdict) -> None:
    """No container, running or not, no volume, no network but its own."""
    found = docker("ps", "--all", "--format", "{{.Names}} ({{.Status}})").splitlines()
    verdict.expect(not found, f"containers that are left: {found}")
    volumes = docker("volume", "ls", "--quiet").split()
    verdict.expect(not volumes, f"volumes that are left: {volumes}")
    networks = docker("network", "ls", "--quiet", "--filter", "type=custom").split()
    verdict.expect(not networks, f"networks that are left: {networks}")


def _training_processes(world: World) -> list[str]:
    found = []
    for process in world.members():
        try:
            allocation = process.environ().get("DET_ALLOCATION_ID")
            if allocation:
                found.append(f"{process.pid} ({process.status()}) of {allocation}")
        except psutil.Error:
            continue
    return found


def _judge_prefect(verdict: Verdict, world: World) -> None:
    deadline = time.monotonic() + SETTLE_S
    while True:
        with world.database() as conn:
            row = conn.execute("SELECT count(*) FROM prefect_outbox").fetchone()
            untold = row[0] if row else 0
        with world.database("prefect") as conn:
            open_runs = conn.execute(
                "SELECT name, state_type::text, state_name FROM flow_run WHERE state_type::text"
                " NOT IN ('COMPLETED', 'FAILED', 'CANCELLED', 'CRASHED')"
            ).fetchall()
        if not untold and not open_runs:
            return
        if time.monotonic() > deadline:
            verdict.wrong.append(
                f"Prefect was not told of {untold} changes; open runs: {open_runs}"
            )
            return
        time.sleep(1)


def to_json(verdict: Verdict) -> str:
    return json.dumps({name: value for name, value in vars(verdict).items() if name != "wrong"})
