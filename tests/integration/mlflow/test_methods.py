"""The methods of MLflow's stores in the pinned release: the ones that we implement, and the changes of an
upgrade.

MLflow marks methods abstract, but nothing enforces it (its base classes use the metaclass syntax of Python
2): a method that is not overridden returns None, or raises NotImplementedError when somebody opens a page.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

KNOWN = Path(__file__).parents[2] / "fixtures" / "mlflow_methods.json"


def stores() -> dict[str, tuple[type, type]]:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository
    from mlflow.store.model_registry.abstract_store import AbstractStore as Registry
    from mlflow.store.tracking.abstract_store import AbstractStore as Tracking

    from determined_registry.mlflow.artifacts import Artifacts
    from determined_registry.mlflow.registry import RegistryStore
    from determined_registry.mlflow.tracking import TrackingStore

    return {
        "tracking": (Tracking, TrackingStore),
        "registry": (Registry, RegistryStore),
        "artifacts": (ArtifactRepository, Artifacts),
    }


def methods(base: type) -> dict[str, str]:
    """Every method and the names of its parameters: what callers of MLflow's rely on."""
    return {
        name: ", ".join(inspect.signature(found).parameters)
        for name, found in inspect.getmembers(base, callable)
        if not name.startswith("__")
    }


@pytest.mark.parametrize("kind", ["tracking", "registry", "artifacts"])
def test_every_abstract_method_is_overridden(kind: str) -> None:
    base, ours = stores()[kind]
    abstract = {
        name
        for name, found in inspect.getmembers(base, callable)
        if getattr(found, "__isabstractmethod__", False)
    }
    assert abstract
    missing = {name for name in abstract if getattr(ours, name) is getattr(base, name)}
    assert missing == set()


@pytest.mark.parametrize("kind", ["tracking", "registry"])
def test_no_method_is_left_that_is_not_implemented(kind: str) -> None:
    """It would be a 500, which clients ask again for minutes."""
    base, ours = stores()[kind]
    left = {
        name
        for name, found in inspect.getmembers(base, inspect.isfunction)
        if getattr(ours, name) is found and "raise NotImplementedError" in inspect.getsource(found)
    }
    assert left == set()


@pytest.mark.parametrize("kind", ["tracking", "registry", "artifacts"])
def test_overrides_accept_mlflows_arguments(kind: str) -> None:
    base, ours = stores()[kind]
    wrong = {}
    for name, parameters in methods(base).items():
        own = getattr(ours, name)
        if own is getattr(base, name):
            continue
        takes = inspect.signature(own).parameters
        kinds = {one.kind for one in takes.values()}
        if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
            continue
        lacking = [one for one in parameters.split(", ") if one and one not in takes]
        if lacking:
            wrong[name] = lacking
    assert wrong == {}


def test_an_upgrade_changed_nothing_that_was_not_looked_at() -> None:
    """After an upgrade: look at each difference, then write the list anew (``python -m
    tests.integration.mlflow.test_methods``)."""
    known: dict[str, Any] = json.loads(KNOWN.read_text())
    found = {kind: methods(base) for kind, (base, _) in stores().items()}
    changed = [
        f"{kind}.{name}: {known[kind].get(name, 'missing')!r} became {found[kind].get(name, 'missing')!r}"
        for kind in known
        for name in sorted(known[kind].keys() | found[kind].keys())
        if known[kind].get(name) != found[kind].get(name)
    ]
    assert changed == []


if __name__ == "__main__":
    lists = {kind: methods(base) for kind, (base, _) in stores().items()}
    KNOWN.write_text(json.dumps(lists, indent=1, sort_keys=True) + "\n")
