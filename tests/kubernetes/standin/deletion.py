"""How objects go: grace, finalizers, and the dependents of an owner."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.standin.objects import KINDS, Object, is_ending, is_over, now, owned_by
from tests.kubernetes.standin.store import Change, Store

FOREGROUND = "foregroundDeletion"


class Deletion:
    """Deletes objects, and what their owners leave, as the garbage collector does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.listeners.append(self._on_change)

    def delete(self, plural: str, thing: Object, policy: str | None, grace: int | None) -> None:
        if plural == "pods":
            self._delete_pod(thing, grace)
            return
        if plural == "namespaces":
            self._delete_namespace(thing)
            return
        dependents = self._dependents(thing)
        if policy == "Orphan":
            for kind, dependent in dependents:
                self._store.change(
                    kind, dependent, lambda one: one["metadata"].pop("ownerReferences")
                )
        elif policy == "Foreground" and dependents:
            self._mark(plural, thing, [FOREGROUND])
            for kind, dependent in dependents:
                self.delete(kind, dependent, "Background", None)
            return
        if thing["metadata"].get("finalizers"):
            self._mark(plural, thing, [])
        else:
            self._store.remove(plural, thing)

    def _delete_pod(self, pod: Object, grace: int | None) -> None:
        if grace is None:
            grace = pod["spec"]["terminationGracePeriodSeconds"]
        if grace == 0 or is_over(pod) or not pod["spec"].get("nodeName"):
            self._store.remove("pods", pod)
            return

        def mark(new: Object) -> None:
            metadata = new["metadata"]
            before = metadata.get("deletionGracePeriodSeconds", grace)
            metadata["deletionGracePeriodSeconds"] = min(before, grace)
            metadata.setdefault("deletionTimestamp", now())

        self._store.change("pods", pod, mark)

    def _delete_namespace(self, namespace: Object) -> None:
        name = namespace["metadata"]["name"]

        def mark(new: Object) -> None:
            new["metadata"].setdefault("deletionTimestamp", now())
            new["metadata"]["finalizers"] = ["kubernetes"]
            new["status"] = {"phase": "Terminating"}

        self._store.change("namespaces", namespace, mark)
        # Jobs first: their pods are not made again.
        for plural in ("jobs", *(kind for kind in KINDS if kind not in ("jobs", "events"))):
            for thing in self._store.select(plural, name) if KINDS[plural].namespaced else ():
                if not is_ending(thing):
                    self.delete(plural, thing, "Background", None)
        self._end_namespace(name)

    def _mark(self, plural: str, thing: Object, finalizers: list[str]) -> None:
        def mark(new: Object) -> None:
            metadata: dict[str, Any] = new["metadata"]
            metadata.setdefault("deletionTimestamp", now())
            metadata["finalizers"] = list({*(metadata.get("finalizers") or ()), *finalizers})

        self._store.change(plural, thing, mark)

    def _dependents(self, owner: Object) -> list[tuple[str, Object]]:
        uid, namespace = owner["metadata"]["uid"], owner["metadata"].get("namespace")
        return [
            (plural, thing)
            for plural in ("pods", "secrets", "configmaps", "jobs")
            for thing in self._store.select(plural, namespace)
            if owned_by(thing, uid)
        ]

    def _on_change(self, change: Change) -> None:
        if change.after is not None:
            return
        gone = change.last["metadata"]
        for owner in gone.get("ownerReferences") or ():
            self._release(owner, gone.get("namespace"))
        if change.plural in ("jobs", "pods"):
            for plural, thing in self._dependents(change.last):
                if not is_ending(thing):
                    self.delete(plural, thing, "Background", None)
        if gone.get("namespace"):
            self._end_namespace(gone["namespace"])

    def _release(self, reference: Object, namespace: str | None) -> None:
        """An owner that waits for its dependents goes when the last one is gone."""
        plural = next((p for p, kind in KINDS.items() if kind.name == reference["kind"]), None)
        owner = self._store.find(plural, namespace or "", reference["name"]) if plural else None
        if owner is None or FOREGROUND not in (owner["metadata"].get("finalizers") or ()):
            return
        if not self._dependents(owner):
            assert plural is not None
            self._store.change(
                plural, owner, lambda new: new["metadata"]["finalizers"].remove(FOREGROUND)
            )

    def _end_namespace(self, name: str) -> None:
        namespace = self._store.find("namespaces", "", name)
        if namespace is None or not is_ending(namespace):
            return
        left = [
            plural for plural in KINDS if plural != "events" and self._store.select(plural, name)
        ]
        if not left:
            for event in self._store.select("events", name):
                self._store.remove("events", event)
            self._store.remove("namespaces", namespace)
