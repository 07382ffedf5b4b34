"""The files of a checkpoint in a local directory: whether they are all there, and how they get there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

METADATA_FILE = "metadata.json"


def is_there(directory: Path, resources: Mapping[str, int], checksums: Mapping[str, str]) -> bool:
    """Whether an earlier download is complete. The metadata is written again each time."""
    sizes = {name: size for name, size in resources.items() if name != METADATA_FILE}
    sums = {name: value for name, value in checksums.items() if name != METADATA_FILE}
    return bool(sizes) and not wrong_sizes(directory, sizes) and not wrong_contents(directory, sums)


def wrong_sizes(directory: Path, resources: Mapping[str, int]) -> list[str]:
    wrong = []
    for name, size in resources.items():
        path = directory / name
        right = path.is_dir() if name.endswith("/") else _size(path) == size
        if not right:
            wrong.append(name)
    return wrong


def wrong_contents(directory: Path, checksums: Mapping[str, str]) -> list[str]:
    from determined.storage import files

    return [
        name
        for name, expected in checksums.items()
        if (directory / name).is_file() and files.checksum(directory / name, expected) != expected
    ]


def move_into(source: Path, target: Path) -> None:
    """Moves what is in the directory ``source`` into ``target``, over what is there."""
    target.mkdir(exist_ok=True)
    for item in source.iterdir():
        _replace(item, target / item.name)


def _replace(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for item in source.iterdir():
            _replace(item, target / item.name)
    elif target.is_dir():
        shutil.rmtree(target)
        source.replace(target)
    else:
        source.replace(target)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
