"""README and docs name only existing commands, options, extras, files, pages and headings."""

from __future__ import annotations

import functools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from determined.cli.root import app
from tests import printed
from tests.printed import ROOT

PAGES = printed.pages()
EXTRA = re.compile(r"determined-prefect\[([\w,-]+)\]|(?<![\w)])\.\[([\w,-]+)\]|\bextra `([\w-]+)`")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


@functools.cache
def _root() -> Any:
    return typer.main.get_command(app)


def wrong(words: list[str]) -> str | None:
    """What `det` would refuse of these words before it looks at any value; None: nothing."""
    command, context = _root(), _root().make_context("det", [], resilient_parsing=True)
    while True:
        context.resilient_parsing = False
        try:
            given, rest, _ = command.make_parser(context).parse_args(list(words))
        except Exception as error:
            return str(error) or repr(error)
        if not hasattr(command, "resolve_command"):
            break
        if not rest:
            return None
        # An unknown name is None then, instead of a message to the terminal.
        context.resilient_parsing = True
        name, below, words = command.resolve_command(context, rest)
        if below is None:
            return f"no command {rest[0]!r}"
        command = below
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    if rest and not context.allow_extra_args:
        return f"nothing takes {' '.join(rest)!r}"
    lacking = [p.name for p in command.params if p.required and given.get(p.name) is None]
    return f"{' and '.join(lacking)} missing" if lacking else None


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("e describe 1 --json", None),
        ("experiment logs -f 1", None),
        ("agent start --type docker", None),
        ("deploy local cluster-up --config x", None),
        ("e descripe 1", "descripe"),
        ("e describe 1 --jsonn", "--jsonn"),
        ("deploy local cluster-upp", "cluster-upp"),
        ("e describe", "missing"),
        ("prefect env now", "now"),
    ],
)
def test_commands_are_judged_by_dets_own_parser(words: str, what: str | None) -> None:
    found = wrong(words.split())
    assert found is None if what is None else found is not None and what in found


@every_page
def test_every_command_and_option_of_det_exists(page: Path) -> None:
    faults = [
        f"{block}: det {' '.join(words)}: {what}"
        for block in printed.blocks(page)
        for words in printed.det_commands(block)
        if (what := wrong(words))
    ]
    # Prose names commands without their arguments.
    faults += [
        f"{page_id(page)}:{number}: det {' '.join(words)}: {what}"
        for number, words in printed.det_spans(page)
        if (what := wrong(words)) and not what.endswith(("missing", "requires an argument."))
    ]
    assert not faults, "\n".join(faults)


@every_page
def test_every_extra_exists(page: Path) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        name
        for match in EXTRA.finditer(page.read_text())
        for name in (match[1] or match[2] or match[3]).split(",")
    }
    assert named <= set(known)


@functools.cache
def _files() -> frozenset[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, text=True, capture_output=True, check=True,
    )  # fmt: skip
    files = listed.stdout.splitlines()
    return frozenset(files) | {str(above) for name in files for above in Path(name).parents}


def _named_paths(page: Path) -> Iterator[str]:
    """Text that looks like a path below one of the repository's folders, in code."""
    folders = "|".join(sorted({name.split("/")[0] for name in _files() if "/" in name}))
    path = re.compile(rf"(?<![\w./<-])((?:{folders})/[\w./*-]*[\w*])")
    spans = [span for _, line in printed.prose(page) for span in re.findall(r"`([^`]+)`", line)]
    for text in (*spans, *(block.text for block in printed.blocks(page))):
        yield from path.findall(text)


@every_page
def test_every_path_of_the_repository_exists(page: Path) -> None:
    absent = [
        name for name in _named_paths(page) if name not in _files() and not list(ROOT.glob(name))
    ]
    assert not absent


@functools.cache
def _anchors(page: Path) -> frozenset[str]:
    """The headings of a page as GitHub names them in links."""
    seen: dict[str, int] = {}
    found = set()
    for _, line in printed.prose(page):
        if heading := re.match(r"#{1,6} +(.+?) *#*$", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
            seen[slug] = seen.get(slug, 0) + 1
    return frozenset(found)


@every_page
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    faults = []
    for number, line in printed.prose(page):
        for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            target = match[1] or match[2]
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            place = (page.parent / name).resolve() if name else page
            if not place.exists():
                faults.append(f"{page_id(page)}:{number}: {target}: no such file")
            elif anchor and anchor not in _anchors(place):
                faults.append(f"{page_id(page)}:{number}: {target}: no such heading")
    assert not faults, "\n".join(faults)


@every_page
def test_every_block_says_its_language(page: Path) -> None:
    faults = [str(b) for b in printed.blocks(page) if b.language not in printed.LANGUAGES]
    assert not faults, f"one of {', '.join(printed.LANGUAGES)}: {', '.join(faults)}"


def test_blocks_and_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file: ~/a.py -->\n```python\nx = 1\n```\n\n<!-- not run: needs a GPU -->\n\n"
        "```sh\ndet e list\n```\nwords\n```text\nID\n```\n"
    )
    found = printed.blocks(page)
    assert [(b.line, b.language, b.text) for b in found] == [
        (2, "python", "x = 1\n"),
        (8, "sh", "det e list\n"),
        (12, "text", "ID\n"),
    ]
    assert [b.marks for b in found] == [{"file": "~/a.py"}, {"not run": "needs a GPU"}, {}]
    assert [b.runs for b in found] == [True, False, False]
    assert list(printed.outputs(found)) == []
    page.write_text("<!-- fails: so -->\n```sh\nfalse\n```\n```text\nID\n```\n```text\nmore\n```\n")
    failing, text, _ = printed.blocks(page)
    assert (failing.runs, failing.marks) == (True, {"fails": "so"})
    assert list(printed.outputs([failing, text])) == [(failing, text)]
    page.write_text("<!-- fiel: a -->\n```sh\n```\n")
    with pytest.raises(ValueError, match="'fiel'; choose file or not run or fails"):
        printed.blocks(page)
    page.write_text("```sh\nls\n")
    with pytest.raises(ValueError, match=r"page\.md:1: this block has no end"):
        printed.blocks(page)


def test_commands_in_the_text_of_blocks() -> None:
    def commands(text: str, language: str = "sh") -> list[str]:
        block = printed.Block(ROOT / "README.md", 1, language, text)
        return [" ".join(words) for words in printed.det_commands(block)]

    assert commands(
        "det e list  # it's\nA=1 .venv/bin/det e \\\n  wait 1; x && det a | det b\n"
    ) == [
        "e list",
        "e wait 1",
        "a",
        "b",
    ]
    assert commands('eval "$(det prefect env)"\ncat <<END\ndet x\nEND\n') == ["prefect env"]
    assert commands("$ det a --b|--c [-d | -e N]...   what for\nthe det tool\n", "text") == [
        "a --b --c -d -e N"
    ]
    assert commands("det e list", "yaml") == []


def test_numbers_times_and_names_that_are_made_up_may_differ() -> None:
    uuids = ("1ea4abf3-0f04-4c6e-893d-0d43222f0bf2", "cf6c37c6-3771-471f-9b32-a6ab52513b93")
    output = f"first\nexperiment 7 after 1m40s\nb {uuids[0]} (1)\nlast -1.5e-3\n"
    assert printed.missing(f"experiment 1 after 9.3s\nb {uuids[1]} …\n…\nlast 2\n", output) is None
    assert printed.missing("experiment 1 failed\n", output) == "experiment 1 failed"
    assert printed.missing("last 1\nfirst\n", output) == "first"
    assert printed.missing("b\n", output) == "b"
    assert printed.missing("ID  State\n7   RUNNING\n", "ID      State\n123456  RUNNING\n") is None
