"""Describes the end of a leg, for users."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from determined.common.wire.last_words import NO_TRIAL_CLASS_CODE
from determined.common.wire.legs import Exited, ExitKind, going_away
from determined_tasks.entrypoint import StartMethod


@dataclass(frozen=True)
class LegResult:
    """The end of a leg; ``reason``: what the exit code or signal does not say by itself.

    ``printed``: the reason is what the process printed itself, so the task's log has it already. ``leaving``:
    as in :class:`~determined.common.wire.legs.Exited`.
    """

    exit_code: int | None
    signal: int | None
    kind: ExitKind
    reason: str | None = None
    printed: bool = False
    leaving: str | None = None

    @property
    def report(self) -> Exited:
        """The report for the service."""
        return Exited(self.exit_code, self.signal, self.kind, self.reason, leaving=self.leaving)

    def __str__(self) -> str:
        """The end in words, as the last line of the task's log.

        Output of the process is not repeated, so that each failure appears once in a log.
        """
        if self.leaving is not None:
            return f"{going_away(self.leaving)}; {self.reason}"
        if self.kind is not ExitKind.EXITED and self.printed:
            return "there is no restart: another try would end the same way"
        if self.kind is not ExitKind.EXITED:
            return self.reason or "lost"
        if self.signal is not None:
            words = f"process was killed by signal {self.signal} ({_signal_name(self.signal)})"
            if self.signal == signal.SIGKILL and self.reason is None:
                words += ", perhaps out of memory"
        else:
            words = f"process exited with code {self.exit_code}"
        return words + (f": {self.reason}" if self.reason and not self.printed else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def failed_to_start(reason: str) -> LegResult:
    return LegResult(None, None, ExitKind.FAILED_TO_START, reason)


def infrastructure(reason: str, leaving: str | None = None) -> LegResult:
    return LegResult(None, None, ExitKind.INFRASTRUCTURE, reason, leaving=leaving)


@dataclass(frozen=True)
class OomKills:
    """The number of processes that the kernel has killed because memory ran out; None: not known.

    ``machine``: since it started, for any limit; ``container``: those of this process's control group, whose
    own limit was reached.
    """

    machine: int | None
    container: int | None


def oom_kills() -> OomKills:
    """The counts at this moment."""
    container = None
    for path in _memory_groups():
        container = _counter(path, "oom_kill")
        if container is not None:
            break
    return OomKills(_counter(Path("/proc/vmstat"), "oom_kill"), container)


def _memory_groups(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[Path]:
    """The files in which the kernel may count for this process's control group: version 2, then 1.

    In a container the group's path may be the machine's, while ``root`` shows the container's group.
    """
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                mount, name = root, "memory.events"
            elif "memory" in controllers.split(","):
                mount, name = root / "memory", "memory.oom_control"
            else:
                continue
            group = mount / path.lstrip("/")
            yield (group if group.is_dir() else mount) / name


def _counter(path: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return None


def describe(
    status: int,
    start: StartMethod,
    *,
    hook_pending: str | None,
    oom_before: OomKills,
    told: str | None = None,
    limit: str | None = None,
) -> LegResult:
    """The result for the wait ``status`` of a process that nobody stopped.

    ``hook_pending``: the startup hook that did not get to its end. ``oom_before``:
    :func:`oom_kills` when the process started. ``told``: what it printed itself that tells why
    (:class:`~.why_ended.WhyEnded`). ``limit``: in words, which of its own the leg has met.
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            if limit is not None:
                return LegResult(None, number, ExitKind.EXITED, limit)
            return _killed(oom_before)
        return LegResult(None, number, ExitKind.EXITED, None)
    code = os.waitstatus_to_exitcode(status)
    if hook_pending and code != 0:
        reason = f"{hook_pending} failed with exit code {code}"
        return LegResult(code, None, ExitKind.FAILED_TO_START, reason)
    if code == 127 and start.first_word:
        word = start.first_word
        reason = f"entrypoint not found: no command {word!r} on the PATH"
        if word.endswith((".py", ".sh")):
            interpreter = "python3" if word.endswith(".py") else "bash"
            reason += f"; a script needs its interpreter: {interpreter} {word}"
        return LegResult(code, None, ExitKind.FAILED_TO_START, reason)
    if limit is not None and code != 0:
        return LegResult(code, None, ExitKind.EXITED, limit)
    shell = SHELL_CODES.get(code) if _is_shell(start) else None
    if shell is not None and code == 128 + signal.SIGKILL:
        killed = _killed(oom_before)
        if killed.reason is not None:
            return LegResult(code, None, killed.kind, killed.reason)
    if shell is not None:
        return LegResult(code, None, ExitKind.EXITED, shell)
    return as_it_said(code, told, start.argv)


def as_it_said(code: int, told: str | None, command: Sequence[str]) -> LegResult:
    """The result of ``command``, which has exited; ``told``: see :func:`describe`."""
    if code == 0 or told is None:
        return LegResult(code, None, ExitKind.EXITED)
    # Others may end with this code for reasons of their own.
    if code == NO_TRIAL_CLASS_CODE and _OF_TRIAL_CLASS.search(" ".join(command)):
        return LegResult(code, None, ExitKind.FAILED_TO_START, told, printed=True)
    return LegResult(code, None, ExitKind.EXITED, told, printed=True)


_OF_TRIAL_CLASS = re.compile(r"\bdetermined\.launch\.\w+ .*--trial\b", re.DOTALL)

SHELL_CODES = {
    126: "the shell could not execute a command",
    127: "the shell did not find a command",
    137: "a command was killed by signal 9, perhaps out of memory",
    139: "a command was killed by signal 11 (segmentation fault)",
}


def _is_shell(start: StartMethod) -> bool:
    return start.form == "program" and start.argv[0] in ("sh", "bash")


def _killed(before: OomKills) -> LegResult:
    """SIGKILL, perhaps by the kernel.

    When the whole machine runs out of memory, the fault is not this trial's alone.
    """
    now = oom_kills()
    if _more(before.container, now.container):
        reason = "out of memory, by the limit of its container"
        return LegResult(None, signal.SIGKILL, ExitKind.EXITED, reason)
    if _more(before.machine, now.machine):
        return infrastructure("killed: the machine is out of memory (137)")
    return LegResult(None, signal.SIGKILL, ExitKind.EXITED, None)


def _more(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before
