"""``python -m tests.integration.mlflow.calls.comparison``: every call against our server and against
MLflow's.

Both keep their rows in one Postgres. Prints the table for ``docs/inside/mlflow.md``; ``--write`` keeps what
MLflow's
own store answered in ``tests/fixtures/mlflow_answers.json``, which the suite compares our answers with.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.mlflow.servers import TrackingServer, both
from tests.integration.mlflow.calls import ANSWERS, differences, without_words
from tests.integration.mlflow.calls.reasons import REASONS, group_of


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--show", action="store_true", help="both answers where they differ")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="det-compare-") as name:
        folder = Path(name)
        with both(folder) as servers, ThreadPoolExecutor(2) as pool:
            found = list(pool.map(_asked, servers, (folder / "a", folder / "b")))
    ours, theirs = found
    if chosen.write:
        said = {call: without_words(answer) for call, answer in theirs.items()}
        kept = json.dumps(said, indent=1, sort_keys=True, ensure_ascii=False)
        ANSWERS.write_text(kept + "\n")
    if chosen.show:
        for call in differences(ours, theirs):
            print(f"{call}\n  ours   {json.dumps(ours[call])}\n  MLflow {json.dumps(theirs[call])}")
        for call, answer in theirs.items():
            if isinstance(answer, dict) and "refused" in answer:
                print(f"MLflow refuses {call}: {answer}")
    print(table(ours, theirs))


def _asked(server: TrackingServer, folder: Path) -> dict[str, Any]:
    """The server's answers to every call, from a separate process: MLflow's client has global state."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.integration.mlflow.calls", str(folder)]
    with (folder / "log").open("w") as log:
        subprocess.run(command, env=server.environment, check=True, stdout=log, stderr=log)
    slow = [
        line
        for line in (folder / "log").read_text().splitlines()
        if re.match(r"\d+\.\d\d s ", line)
    ]
    slow.sort(key=lambda line: -float(line.split()[0]))
    print(f"slowest at {server.uri}: {'; '.join(slow[:12])}", file=sys.stderr)
    found: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return found


def table(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """In Markdown: how many answers agree, and why the others do not."""
    differ = differences(ours, theirs)
    refused = sum(isinstance(one, dict) and "refused" in one for one in ours.values())
    lines = [f"{len(ours)} calls, {len(ours) - len(differ)} agree; {refused} are refused here.", ""]
    lines += ["| calls with different answers | why |", "|---|---|"]
    groups: dict[str, list[str]] = {}
    for call in differ:
        groups.setdefault(group_of(call), []).append(call)
    for group, calls in groups.items():
        names = ", ".join(f"`{one.removeprefix('MlflowClient.')}`" for one in sorted(calls))
        lines.append(f"| {names} | {REASONS.get(group, '**A FAULT**')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
