"""A folder of files that name processes, for launchers whose jobs are processes of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from determined_tasks.supervision import ProcessName


class ProcessRecords:
    """``<id>.json`` for each job: its process, and the job's note."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, id_: str, process: ProcessName, note: Mapping[str, Any]) -> None:
        path = self._folder / f"{id_}.json"
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps({**note, "pid": process.pid, "started": process.started}))
        aside.rename(path)

    def read(self) -> Iterator[tuple[str, ProcessName, dict[str, Any]]]:
        """Ids, processes and notes. What cannot be read is left out."""
        for path in self._folder.glob("*.json"):
            try:
                note = json.loads(path.read_text())
                process = ProcessName(note.pop("pid"), note.pop("started"))
            except (OSError, ValueError, KeyError, AttributeError):
                continue
            yield path.stem, process, note

    def remove(self, id_: str) -> None:
        (self._folder / f"{id_}.json").unlink(missing_ok=True)
