"""From Enter on `det shell start`, and on `det shell open`, to the prompt (cluster up, agent warm)."""

from __future__ import annotations

import os
import pty
import re
import statistics
import time

from benchmarks.cluster import DET, Cluster, cluster

ROUNDS = 7
PROMPT = re.compile(rb"[#$%>] (?:\x1b\[[0-9;?]*[a-zA-Z])*$")


def seconds_to_prompt(env: dict[str, str], *words: str) -> float:
    """Runs `det` on a terminal of its own, and leaves the shell at its prompt."""
    enter = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(DET[0], [*DET, *words], env)
    seen = b""
    while not PROMPT.search(seen):
        seen += os.read(terminal, 65536)
    took = time.perf_counter() - enter
    os.write(terminal, b"exit\n")
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # its last process has closed it
        pass
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, seen
    return took


def measure(running: Cluster, *options: str) -> tuple[list[float], list[float]]:
    """Of `start`, and of `open`."""
    starts, opens = [], []
    for number in range(ROUNDS + 1):
        start = seconds_to_prompt(running.env, "shell", "start", *options)
        shell_id = running.det("shell", "list", "-q").stdout.split()[-1]
        again = seconds_to_prompt(running.env, "shell", "open", *options, shell_id)
        running.det("shell", "kill", shell_id)
        if number:  # the first one logs in
            starts.append(start)
            opens.append(again)
    return starts, opens


def main() -> None:
    with cluster() as running:
        for options in ((), ("--no-ssh",)):
            for verb, waits in zip(("start", "open"), measure(running, *options), strict=True):
                print(
                    f"Enter to the prompt of `det {' '.join(['shell', verb, *options])}`: median"
                    f" {statistics.median(waits):.2f} s (min {min(waits):.2f}, max {max(waits):.2f})"
                )


if __name__ == "__main__":
    main()
