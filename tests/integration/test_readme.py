"""README works as printed: every block, from the first to the last, for somebody who has just cloned."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import printed
from tests.local_cluster import LocalCluster
from tests.memory_folder import memory_folder
from tests.printed import ROOT, SHELL, Block

LIMIT_S = 1800
ENVIRONMENT = Path(sys.prefix)


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a home in which nothing is, and no cluster when the test has ended."""
    with memory_folder("determined-readme-") as name:
        place = Path(name)
        (place / "home").mkdir()
        try:
            yield place
        finally:
            LocalCluster(place / "home/.local/share/determined", {}).end()


def git(checkout: Path, *words: str) -> str:
    who = ("-c", "user.name=reader", "-c", "user.email=reader@localhost")
    done = subprocess.run(
        ["git", *who, *words], cwd=checkout, text=True, capture_output=True, check=True
    )
    return done.stdout


def clone(checkout: Path) -> None:
    """The working tree as a repository of its own, with the environment that `make` would install."""
    names = git(ROOT, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    for name in names:
        source, target = ROOT / name, checkout / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    git(checkout, "init", "-q")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "as cloned")
    venv = checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    for path in [*ENVIRONMENT.iterdir(), *(ENVIRONMENT / "bin").iterdir()]:
        link = venv / path.relative_to(ENVIRONMENT)
        if not link.exists() and not path.name.startswith((".", "activate")):
            link.symlink_to(path)
    # The real one names the real environment.
    (venv / "bin/activate").write_text(f"PATH={venv}/bin:$PATH\n")
    (venv / ".local").touch()


def session(blocks: list[Block], place: Path) -> str:
    """One shell's script that runs the blocks; each block's output goes to ``place/output-<its number>``."""
    lines = ["set -eo pipefail"]
    for number, block in enumerate(blocks):
        text = place / f"block-{number}"
        text.write_text(block.text)
        lines.append(f"exec >{place}/output-{number} 2>&1")
        if "not run" in block.marks:
            continue
        if target := block.marks.get("file"):
            lines += [f'mkdir -p "$(dirname {target})"', f"cp {text} {target}"]
        elif block.language in SHELL:
            lines.append(f". {text}")
        elif block.language == "python":
            lines.append(f"python - <{text}")
    return "\n".join(lines) + "\n"


@pytest.mark.timeout(LIMIT_S)
def test_readme_works_as_printed(folder: Path) -> None:
    checkout, home = folder / "checkout", folder / "home"
    clone(checkout)
    blocks = printed.blocks(checkout / "README.md")
    script = folder / "session.sh"
    script.write_text(session(blocks, folder))
    ours = ("DET_", "PREFECT_", "XDG_", "MLFLOW_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        ["bash", str(script)],
        cwd=checkout,
        env={**kept, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
    )

    def output(number: int) -> str:
        path = folder / f"output-{number}"
        return path.read_text() if path.exists() else ""

    reached = max(number for number in range(len(blocks)) if (folder / f"output-{number}").exists())
    block = blocks[reached]
    assert done.returncode == 0, f"README.md:{block.line}:\n{block.text}---\n{output(reached)}"
    for block, printed_text in printed.outputs(blocks):
        found = output(blocks.index(block))
        absent = printed.missing(printed_text.text, found)
        assert absent is None, f"README.md:{printed_text.line}: {absent!r} is not in\n{found}"
    # What the examples write is ignored, or elsewhere.
    assert git(checkout, "status", "--porcelain") == ""
