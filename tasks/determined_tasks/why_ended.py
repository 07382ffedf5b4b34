"""Finds the reason for an exit code other than zero in the output of a process and its workers."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from determined.common.printable import counted, without_colours
from determined.common.tracebacks import without_ranks
from determined_tasks.last_exception import MAX_CHARACTERS, LastException, cut
from determined_tasks.log_lines import ParsedLine

MAX_RANKS = 1024
# Lines of a rank among which its last words are looked for.
MAX_TAIL = 50
# Between an exception and the end: more than this, and it is not told.
MAX_LINES_BETWEEN = 200

# The launchers' own word on who failed first: determined.launch's, and torchrun's, whose last is the cause.
_FAILED = re.compile(r"determined\.launch: rank (\d{1,9}) |\s+rank\s+: (\d{1,9}) \(local_rank: ")
# What a worker raises because another one is gone.
_LOST_OTHERS = re.compile(
    r"WorkerLost\b|[Cc]onnection (was )?(likely )?(closed|reset)|[Bb]roken ?[Pp]ipe|remote process exited"
    r"|DistNetworkError|DistStoreError|HorovodInternalError|pair closure|Timed out waiting"
    r"|Socket closed|connectFullMesh failed"
)
# Says nothing about the end: progress bars, warnings, remarks of glog and of env.
_NOISE = re.compile(r"\d%\||Warning: |\[?[WI]\d{4} |env: use -\[v\]S to pass options")
_QUIET = ("TRACE", "DEBUG", "INFO", "WARNING")
_FRAMES = "│╭╰╮╯─ \n\r"


class _Process:
    """The output of one process."""

    def __init__(self, workdir: Path | None) -> None:
        self._streams = {name: LastException(workdir) for name in ("stderr", "stdout")}
        self._tail: deque[str] = deque(maxlen=MAX_TAIL)

    def feed(self, line: str, stream: str, level: str | None) -> bool:
        """True if an exception was found in ``line``."""
        # A line that ends in a carriage return is a progress bar's.
        if stream == "stderr" and level not in _QUIET and not line.endswith("\r"):
            self._tail.append(line[: MAX_CHARACTERS + 1])
        return self._streams[stream].feed(line)

    @property
    def _last(self) -> str | None:
        """The last line of stderr that may say why: sys.exit()'s argument, argparse's and click's errors."""
        for line in reversed(self._tail):
            text = without_colours(line).strip(_FRAMES)
            if not line[:1].isspace() and not _NOISE.search(text) and any(map(str.isalnum, text)):
                return "last line of stderr: " + cut(text, MAX_CHARACTERS).replace("\0", "\\x00")
        return None

    @property
    def exception(self) -> str | None:
        """The one near the end: of stderr if there is one."""
        return next((one.text for one in self._streams.values() if one.text is not None), None)

    @property
    def words(self) -> str | None:
        """:attr:`exception`, or else its last line on stderr, with the exception that came before it."""
        if (found := self.exception) is not None:
            return found
        for stream in self._streams.values():
            if stream.early is not None and stream.lines_after <= MAX_LINES_BETWEEN:
                said = f"{stream.early}, {counted(stream.lines_after, 'line')} before the end"
                return "; ".join(filter(None, (said, self._last)))
        return self._last


class WhyEnded:
    """Feed it every line of both streams, each in its order; :attr:`text` tells why.

    Lines of several processes, with their rank in front, come in any order, so each rank is read by itself.
    """

    def __init__(self, workdir: Path | None = None) -> None:
        self._workdir = workdir
        # None: lines without a rank: the launcher's own, or the only process's.
        self._processes: dict[int | None, _Process] = {None: _Process(workdir)}
        # Ranks by the time of their last exception.
        self._order: dict[int, None] = {}
        self._failed: int | None = None
        # torchrun puts no rank before its workers' lines; it names the first that failed at its end.
        self._of_torchrun: int | None = None
        self._exceptions = 0
        self._is_lost = False

    def feed(self, line: ParsedLine, stream: str) -> None:
        found, text = without_ranks(line.log)
        rank = line.rank if found is None else found
        process = self._processes.get(rank)
        if process is None:
            if len(self._processes) > MAX_RANKS:
                return
            process = self._processes[rank] = _Process(self._workdir)
        if process.feed(text, stream, line.level):
            if rank is None:
                self._exceptions += 1
            else:
                self._order.pop(rank, None)
                self._order[rank] = None
        if rank is None:
            self._is_lost = self._is_lost or _LOST_OTHERS.search(text) is not None
            if failed := _FAILED.match(text):
                self._failed = int(failed[1] or failed[2])
                self._of_torchrun = None if failed[2] is None else self._failed

    @property
    def text(self) -> str | None:
        """The reason of the rank that failed first: others often fail because it is gone.

        Without ranks, or if they say nothing, the launcher's own. None when nothing tells.
        """
        told = dict(self._of_ranks())
        if not told:
            return self._words_without_rank()
        first = next((rank for rank in told if not _LOST_OTHERS.search(told[rank])), None)
        if first is None and len(left := self._left(told)) == 1:
            told, first = left, next(iter(left))
        rank = next(iter(told)) if first is None else first
        return f"rank {rank}: {told[rank]}"

    def _left(self, told: dict[int, str]) -> dict[int, str]:
        """The last words of the ranks that are not in ``told``.

        A rank that leaves by ``sys.exit("text")`` closes its connections some time before its process ends.
        On a busy machine the ranks that lost it may end first, and the launcher then names one of them.
        """
        others = {rank: one.words for rank, one in self._processes.items() if rank is not None}
        return {
            rank: words for rank, words in others.items() if words is not None and rank not in told
        }

    def _words_without_rank(self) -> str | None:
        words = self._processes[None].words
        if words is None or self._of_torchrun is None:
            return words
        if self._exceptions <= 1 and not self._is_lost:
            return f"rank {self._of_torchrun}: {words}"
        # Of several nobody says whose it is, and who lost another worker may have ended before that one.
        return f"{words}; torchrun saw rank {self._of_torchrun} fail first"

    def _of_ranks(self) -> Iterator[tuple[int, str]]:
        """The likeliest first."""
        failed = -1 if self._failed is None else self._failed
        if failed in self._processes and (words := self._processes[failed].words) is not None:
            yield failed, words
        for rank in self._order:
            if rank != failed and (exception := self._processes[rank].exception) is not None:
                yield rank, exception
        for rank in self._order:
            if rank != failed and (words := self._processes[rank].words) is not None:
                yield rank, words
