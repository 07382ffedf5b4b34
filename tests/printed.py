"""What README and docs print: blocks of code, the marks before them, links, and `det` commands.

tests/README.md describes the marks of blocks.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHELL = ("sh", "bash")
LANGUAGES = (*SHELL, "python", "text", "yaml", "json", "toml", "nginx", "ini", "mermaid")
MARKS = ("file", "not run", "fails")

_FENCE = re.compile(r"^ *(`{3,})(\w*) *$")
_MARK = re.compile(r"^ *<!-- ([\w ]+): (.+?) -->$")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)")
_ASSIGNMENT = re.compile(r"\w+=")


MADE = ROOT / "docs" / "reference" / "commands.md"
"""The page that `make docs` writes from the code."""


def pages() -> list[Path]:
    """README and every page of docs that people write."""
    written = sorted(set((ROOT / "docs").rglob("*.md")) - {MADE})
    return [ROOT / "README.md", *written]


@dataclass(frozen=True)
class Block:
    """A fenced block. ``language``: the word after the fence; ``line``: of the fence, from 1."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """True if a shell runs it, or writes it to a file."""
        return "not run" not in self.marks and (
            "file" in self.marks or self.language in (*SHELL, "python")
        )

    def __str__(self) -> str:
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in its order. Raises ValueError for an unknown mark, or an open block."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    begun: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if begun is not None:
            if fence and fence[1] == begun[1] and not fence[2]:
                found.append(Block(page, begun[0], begun[2], "\n".join(lines) + "\n", marks))
                begun, marks = None, {}
            else:
                lines.append(line)
        elif fence:
            begun, lines = (number, fence[1], fence[2]), []
        elif mark := _MARK.match(line):
            if mark[1] not in MARKS:
                raise ValueError(f"{page}:{number}: mark {mark[1]!r}; choose {' or '.join(MARKS)}")
            marks = {**marks, mark[1]: mark[2]}
        elif line.strip():
            marks = {}
    if begun is not None:
        raise ValueError(f"{page}:{begun[0]}: this block has no end")
    return found


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines outside of blocks."""
    inside = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and inside in ("", fence[1]):
            inside = "" if inside else fence[1]
        elif not inside:
            yield number, line


def det_commands(block: Block) -> Iterator[list[str]]:
    """The words behind each `det` in a block for the shell, or at the beginning of a line of `text`."""
    if block.language in SHELL:
        for line in _shell_lines(block.text):
            for command in (line, *re.findall(r"\$\((.*?)\)", line)):
                yield from _det(command)
    elif block.language == "text":
        for line in block.text.splitlines():
            if match := re.match(r"(?:\$ )?(det .*?)(?:   .*)?$", line):
                yield from _det(_synopsis(match[1]))


def det_spans(page: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, words) of each `det …` in the prose."""
    for number, line in prose(page):
        for span in re.findall(r"`(det [^`]+)`", line):
            for words in _det(_synopsis(span)):
                yield number, words


def _synopsis(text: str) -> str:
    """``[-i PATH]... [-d | --paused] --type a|b`` as a command with all of it."""
    text = re.sub(r"\|(?=--?\w)", " ", text)
    text = re.sub(r"(?<=\w)\|[\w|]+", "", text).replace("...", "").replace("…", "")
    return re.sub(r"\[([^\]]*)\]", lambda match: match[1].replace("|", " "), text)


def _shell_lines(text: str) -> Iterator[str]:
    """Whole commands, without the documents that they read from the script itself."""
    end = None
    for line in text.replace("\\\n", " ").splitlines():
        if end is not None:
            end = None if line.strip() == end else end
            continue
        if heredoc := _HEREDOC.search(line):
            end = heredoc[1]
        yield line


def _det(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        words = list(lexer)
    except ValueError:  # an apostrophe in words for the reader
        words = line.partition(" #")[0].split()
    command: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set(";&|()<>"):
            if command and Path(command[0]).name == "det":
                yield command[1:]
            command = []
        elif command or not _ASSIGNMENT.match(word):
            command.append(word)


def outputs(page_blocks: list[Block]) -> Iterator[tuple[Block, Block]]:
    """(block, what it prints): a block ``text`` is what the one before it prints, if that is run."""
    for before, after in itertools.pairwise(page_blocks):
        commands = before.runs and "file" not in before.marks
        if commands and after.language == "text" and "not run" not in after.marks:
            yield before, after


def missing(expected: str, output: str) -> str | None:
    """The first line of ``expected`` that ``output`` does not have after those before it; None: it has all.

    Numbers, durations, UUIDs and the widths of columns may be others. ``…`` at a line's end stands for
    anything, and alone for any lines.
    """
    lines = iter(output.splitlines())
    for line in expected.splitlines():
        begin, more, _ = line.partition("…")
        if more and not begin.strip():
            continue
        wanted = _masked(begin.rstrip())
        if not any(
            found.startswith(wanted) if more else found == wanted
            for found in map(_masked, map(str.rstrip, lines))
        ):
            return line
    return None


def _masked(line: str) -> str:
    line = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>", line)
    line = re.sub(r"\b(\d+h)?(\d+m)?\d+(\.\d+)?s\b", "<time>", line)
    line = re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "<number>", line)
    return re.sub(r"(?<=\S) {2,}", "  ", line)
