"""``python -m tests.chaos.run SECONDS [SEED] [--docker]``: searches on a cluster under continuous faults;
then the faults stop, and the results are compared with runs without faults.

``--docker``: the trials of one of the two agents run in containers, of an engine that fails, too.
``make chaos FOR=600 SEED=1``. The same seed chooses the same faults and searches; when each one meets
them is up to the machine.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import psycopg

from determined.common.api import errors
from determined_deployments.local.errors import ClusterError
from tests import container_engine
from tests.chaos import load, oracle
from tests.chaos.faults import LANES, Fault, kinds, schedule
from tests.chaos.world import World

AT_A_TIME = 2
"""Experiments that are open at the same time."""
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
    each_once: bool = False,
) -> Report:
    """One chaos run in ``folder``; ``look`` is shown the end of it. ``engine``: of the second agent.
    ``each_once``: it ends sooner, when every kind of fault was made.

    Raises AssertionError when a process or wait does not end.
    """
    report = Report(seed)
    world = World(folder, long_stops=seconds >= LONG_RUN_S, engine=engine)
    stop = threading.Event()
    try:
        world.up()
        begin = time.monotonic()
        threads = [threading.Thread(target=_submit, args=(world, Random(seed), stop))]
        for number, (lane, rate) in enumerate(LANES.items(), start=1):
            faults = schedule(lane, Random(seed + number), report.faults, engine is not None)
            chance = Random(seed - number)
            rate = max(rate, ONCE_RATE) if each_once else rate
            threads.append(
                threading.Thread(target=_inject, args=(world, faults, chance, rate, report, stop))
            )
        for thread in threads:
            thread.start()
        try:
            wanted = kinds(engine is not None)
            while time.monotonic() - begin < seconds and not (
                each_once and wanted <= {*report.faults}
            ):
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
    count = 0
    while not stop.is_set():
        try:
            wanted = world.open_experiments() < AT_A_TIME
        except UNREACHABLE:
            wanted = False
        if wanted:
            count += 1
            name, seed = load.choose(random)
            pool = world.pools[count % len(world.pools)]
            config = load.config(name, seed, world.storage, pool)
            world.submit(config, load.SCRIPT, f"{count}-{name}")
        stop.wait(0.5)


def main(arguments: list[str]) -> int:
    docker = "--docker" in arguments
    arguments = [word for word in arguments if word != "--docker"]
    seconds = float(arguments[0]) if arguments else 60.0
    seed = int(arguments[1]) if len(arguments) > 1 else int(time.time())
    folder = Path(tempfile.mkdtemp(prefix="determined-chaos-"))
    # As Ctrl-C: nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder.chmod(0o755)  # Postgres runs as another user when root is not allowed to
    try:
        with container_engine.own() if docker else contextlib.nullcontext() as engine:
            if isinstance(engine, str):
                raise SystemExit(engine)
            report = run(folder, seconds, seed, engine=engine)
        print(*report.lines(), sep="\n")
        lost = bool(report.verdict.wrong)
    except AssertionError as error:
        print(f"seed {seed}: {error}")
        lost = True
    if lost:
        print(f"everything is kept in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
