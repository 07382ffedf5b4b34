"""Entries of ``prefect.yaml`` whose every word is known without Prefect: the platform's own.

A plain entry names a flow of this package's release and uses no template, schedule, trigger or step. Its
result in Prefect follows from the file, from where it lies, and from the packages installed: the entry's
fingerprint. An entry that is registered under its fingerprint needs no second look, and a new one needs
nothing of the machinery behind `prefect deploy`.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from determined_deployments.registered_schedules import digest

FLOWS = "determined_flows"
"""The package of the flows. Their parameters have built-in types, so its source is all that counts."""
PACKAGES = ("determined-prefect", "prefect", "pydantic")
ENTRY_KEYS = {"name", "description", "entrypoint", "tags", "work_pool", "schedules"}
FILE_KEYS = {"name", "prefect-version", "build", "push", "pull", "definitions", "deployments"}


def fingerprints(path: Path, document: Mapping[str, Any]) -> list[str | None]:
    """One for each entry of the file, None for one that is not plain."""
    declared = document.get("deployments") or []
    if not isinstance(declared, list):
        return []
    if not _is_plain_file(path, document):
        return [None] * len(declared)
    installed: list[Any] | None = None
    found: list[str | None] = []
    for entry in declared:
        if not _is_plain(entry):
            found.append(None)
            continue
        installed = installed or _installed()
        found.append(digest([entry, str(path.parent), installed]))
    return found


def _is_plain_file(path: Path, document: Mapping[str, Any]) -> bool:
    names = (document.get("name"), document.get("prefect-version"))
    return (
        set(document) <= FILE_KEYS
        and not any(document.get(key) for key in ("build", "push", "pull"))
        and document.get("pull") is None
        and all(name is None or isinstance(name, str) for name in names)
        and "{{" not in str(path.parent)  # it becomes part of a step, with templates
    )


def _is_plain(entry: Any) -> bool:
    if not isinstance(entry, dict) or not set(entry) <= ENTRY_KEYS or entry.get("schedules"):
        return False
    pool, tags = entry.get("work_pool"), entry.get("tags") or []
    if not isinstance(pool, dict) or set(pool) != {"name"} or not isinstance(tags, list):
        return False
    words = [entry.get("name"), entry.get("entrypoint"), pool["name"], *tags]
    if entry.get("description") is not None:
        words.append(entry["description"])
    plain = all(isinstance(word, str) and word and "{{" not in word for word in words)
    return plain and ":" not in entry["entrypoint"] and entry["entrypoint"].startswith(f"{FLOWS}.")


def _installed() -> list[Any]:
    """The versions on which the flows' names, descriptions, versions and parameters depend."""
    source = hashlib.sha256()
    spec = importlib.util.find_spec(FLOWS)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*.py")):
            source.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return [source.hexdigest(), *(metadata.version(package) for package in PACKAGES)]
