"""Runs the blocks of a page as printed: in one shell, in a copy of the working tree, with a home that is new.

tests/README.md describes the marks of blocks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests import printed
from tests.printed import ROOT, SHELL, Block

ENVIRONMENT = Path(sys.prefix)
ADDRESS = "http://127.0.0.1:8080"
"""Of the service in pages: that of a cluster whose port was free."""
HOME, MACHINE = "/home/ada", "vm"
"""The home and the machine's name that pages print."""
_OURS = ("DET_", "PREFECT_", "XDG_", "MLFLOW_", "VIRTUAL_ENV")


def git(checkout: Path, *words: str) -> str:
    who = ("-c", "user.name=reader", "-c", "user.email=reader@localhost")
    done = subprocess.run(
        ["git", *who, *words], cwd=checkout, text=True, capture_output=True, check=True
    )
    return done.stdout


def clone(checkout: Path) -> None:
    """The working tree as a repository, with the environment that `make` would install."""
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


def environment(home: Path, checkout: Path | None = None) -> dict[str, str]:
    """Variables of a shell that knows of no cluster; ``checkout``: whose environment is activated."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    first = [f"{checkout}/.venv/bin"] if checkout else []
    return {**kept, "HOME": str(home), "PATH": os.pathsep.join([*first, kept["PATH"]])}


def _script(blocks: list[Block], place: Path, names: Mapping[str, str]) -> str:
    """The shell's script; the output of each block goes to ``place/output-<its number>``."""
    lines = ["set -eo pipefail"]
    for number, block in enumerate(blocks):
        text = place / f"block-{number}"
        text.write_text(_replaced(block.text, names))
        if not block.runs:
            continue
        lines.append(f"exec >{place}/output-{number} 2>&1")
        if target := block.marks.get("file"):
            lines += [f'mkdir -p "$(dirname {target})"', f"cp {text} {target}"]
        else:
            command = f". {text}" if block.language in SHELL else f"python - <{text}"
            lines.append(f"if {command}; then exit 1; fi" if "fails" in block.marks else command)
    return "\n".join(lines) + "\n"


def _replaced(text: str, names: Mapping[str, str]) -> str:
    for name, instead in names.items():
        text = text.replace(name, instead)
    return text


def run(
    page: Path,
    checkout: Path,
    place: Path,
    env: dict[str, str],
    names: Mapping[str, str] | None = None,
) -> None:
    """Run the blocks of ``page`` in ``checkout``, with its files in ``place``.

    ``env``: variables of the shell. ``names``: maps texts of the pages (:data:`ADDRESS`, paths, names) to
    their values here. Raises AssertionError with the page's line for a block that fails, or that does not
    print what the page says.
    """
    names = names or {}
    printed_names = {here: there for there, here in names.items()}
    blocks = printed.blocks(page)
    script = place / "session.sh"
    script.write_text(_script(blocks, place, names))
    done = subprocess.run(["bash", str(script)], cwd=checkout, env=env, stdin=subprocess.DEVNULL)
    outputs = {
        number: _replaced(path.read_text(errors="replace"), printed_names)
        for number in range(len(blocks))
        if (path := place / f"output-{number}").exists()
    }
    if done.returncode:
        reached = max(outputs)
        raise AssertionError(f"{blocks[reached]}:\n{blocks[reached].text}---\n{outputs[reached]}")
    for block, text in printed.outputs(blocks):
        found = outputs[blocks.index(block)]
        absent = printed.missing(text.text, found)
        assert absent is None, f"{text}: {absent!r} is not in\n{found}"
