"""``python -m tests.chaos.run SECONDS [SEED]``: searches on a cluster under continuous faults; then the
faults stop, and the results are compared with runs without faults.

``--docker``: the trials of one of the two agents run in containers, of an engine that fails, too.
``--kubernetes VERSION``: a third agent runs its trials in pods, of a stand-in of Kubernetes whose nodes and
API fail, too. ``make chaos FOR=600 SEED=1``. The same seed chooses the same faults and searches; when each
one meets them is up to the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import psycopg

from determined.common.api import errors
from determined_deployments.local.errors import ClusterError
from tests import container_engine
from tests.chaos import load, oracle
from tests.chaos.faults import LANES, Fault, schedule
from tests.chaos.nodes import Nodes
from tests.chaos.world import World
from tests.kubernetes.standin.running import running

AT_A_TIME = 2
"""Experiments that are open at the same time; of several pools one in each."""
BESIDE_PODS = 1 / 6
"""What is left, beside those of pods, of all other faults: with more, hardly a pod would ever run."""
UNREACHABLE = (
    psycopg.Error,
    errors.APIException,
    ClusterError,
    subprocess.SubprocessError,
    psutil.Error,
)
LONG_RUN_S = 300.0
"""From here on some stops last for a minute."""
ONCE_RATE = 0.1
"""How many faults a second each lane has at least in a run that ends when every kind was made."""
END_S = 300.0
"""How long all may take to end once nothing goes wrong any more."""


@dataclass
class Report:
    """The faults of a run, and its verdict."""

    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    verdict: oracle.Verdict = field(default_factory=oracle.Verdict)
    broken: list[str] = field(default_factory=list)
    """Faults that could not be made, and not because of another."""

    def lines(self) -> list[str]:
        verdict = self.verdict
        return [
            f"seed {self.seed}, {self.seconds:.0f} s, {self.faults.total()} faults:",
            *(f"  {count:5}  {name}" for name, count in self.faults.most_common()),
            f"{verdict.experiments} experiments, {verdict.trials} trials in {verdict.legs} legs,"
            f" {verdict.reports} reports, {verdict.lines} log lines, {verdict.checkpoints} checkpoints",
            "legs: " + ", ".join(f"{key} {count}" for key, count in sorted(verdict.ends.items())),
            *(f"WRONG: {words}" for words in verdict.wrong),
            "nothing lost" if not verdict.wrong else f"{len(verdict.wrong)} things are wrong",
        ]


Look = Callable[[World, oracle.Verdict], None]


def run(
    folder: Path,
    seconds: float,
    seed: int,
    look: Look | None = None,
    engine: container_engine.Engine | None = None,
    nodes: Nodes | None = None,
    each_of: Collection[str] = (),
    most: float = float("inf"),
) -> Report:
    """One chaos run in ``folder``; ``look`` is shown the end of it. ``engine``: of the second agent;
    ``nodes``: of the third. It ends sooner when each of these kinds of faults was made, if any are named, and
    when there were ``most`` faults.

    Raises AssertionError when a process or wait does not end.
    """
    report = Report(seed)
    world = World(folder, long_stops=seconds >= LONG_RUN_S, engine=engine, nodes=nodes)
    stop = threading.Event()
    try:
        world.up()
        begin = time.monotonic()
        threads = [threading.Thread(target=_submit, args=(world, Random(seed), stop))]
        for number, (lane, rate) in enumerate(LANES.items(), start=1):
            faults = schedule(lane, Random(seed + number), report.faults, world.pools)
            chance = Random(seed - number)
            if nodes is not None and lane in ("machines", "network", "cluster"):
                rate *= BESIDE_PODS
            rate = max(rate, ONCE_RATE) if each_of else rate
            threads.append(
                threading.Thread(target=_inject, args=(world, faults, chance, rate, report, stop))
            )
        for thread in threads:
            thread.start()
        try:
            while time.monotonic() - begin < seconds and report.faults.total() < most:
                if each_of and {*each_of} <= {*report.faults}:
                    break
                time.sleep(0.2)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            report.seconds = time.monotonic() - begin
            world.heal()
        world.wait_for_quiet(END_S)
        report.verdict = oracle.judge(world)
        report.verdict.wrong += report.broken
        if look is not None:
            look(world, report.verdict)
    finally:
        world.down()
    return report


def _inject(
    world: World,
    faults: Iterator[Fault],
    random: Random,
    rate: float,
    report: Report,
    stop: threading.Event,
) -> None:
    begin = time.monotonic()
    while not stop.wait(random.expovariate(rate)):
        fault = next(faults, None)
        if fault is None:
            return
        try:
            happened = fault.inject(world, random)
        except UNREACHABLE:
            continue  # a process that it needs was just being killed
        except Exception as error:
            report.broken.append(f"{fault.name}: {type(error).__name__}: {error}")
            traceback.print_exc()
            continue
        if happened:
            report.faults[fault.name] += 1
            print(f"[{time.monotonic() - begin:6.1f}s] {fault.name}", flush=True)


def _submit(world: World, random: Random, stop: threading.Event) -> None:
    """Keeps some experiments going."""
    count, most = 0, max(1, AT_A_TIME // len(world.pools))
    while not stop.wait(0.5):
        try:
            pool = next((one for one in world.pools if world.open_experiments(one) < most), None)
        except UNREACHABLE:
            continue
        if pool is not None:
            count += 1
            name, seed = load.choose(random)
            config = load.config(name, seed, world.storage, pool)
            world.submit(config, load.SCRIPT, f"{count}-{name}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run")
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("seed", type=int, nargs="?", default=int(time.time()))
    parser.add_argument("--docker", action="store_true", help="one of the agents runs containers")
    parser.add_argument(
        "--kubernetes", metavar="VERSION", help="a third agent runs pods, on such a stand-in: 1.33"
    )
    parser.add_argument(
        "--faults", type=float, default=float("inf"), help="ends after so many (default: no limit)"
    )
    asked = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="determined-chaos-"))
    # As Ctrl-C: nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder.chmod(0o755)  # Postgres runs as another user when root is not allowed to
    try:
        with contextlib.ExitStack() as held:
            engine = held.enter_context(container_engine.own()) if asked.docker else None
            if isinstance(engine, str):
                raise SystemExit(engine)
            nodes = None
            if asked.kubernetes:
                nodes = Nodes(held.enter_context(running(asked.kubernetes)))
            report = run(
                folder, asked.seconds, asked.seed, engine=engine, nodes=nodes, most=asked.faults
            )
        print(*report.lines(), sep="\n")
        lost = bool(report.verdict.wrong)
    except AssertionError as error:
        print(f"seed {asked.seed}: {error}")
        lost = True
    if lost:
        print(f"everything is kept in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
