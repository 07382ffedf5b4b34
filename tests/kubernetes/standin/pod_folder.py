"""What a pod's containers see: volumes as directories, environment, the order to start each."""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kubernetes.standin.container import PATH, Mount, Order
from tests.kubernetes.standin.objects import Object, Refused, quantity
from tests.kubernetes.standin.store import Store

SHARED_MEMORY = "/dev/shm"


class NotReady(Exception):
    """``reason`` and words of a container that waits."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class PodFolder:
    def __init__(self, path: Path, store: Store, pod: Object) -> None:
        self._path = path
        self._store = store
        self._pod = pod
        self._namespace: str = pod["metadata"]["namespace"]

    def container_folder(self, name: str) -> Path:
        return self._path / "containers" / name

    def make_volumes(self) -> None:
        """Raises NotReady while a Secret or ConfigMap is missing."""
        for volume in self._pod["spec"].get("volumes") or ():
            name, path = volume["name"], self._path / "volumes" / volume["name"]
            if "emptyDir" in volume:
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o777)
            for plural, contents, mode in _contents(volume):
                self._write_files(path, name, plural, contents, mode)

    def _write_files(self, path: Path, volume: str, plural: str, source: Object, mode: int) -> None:
        wanted = source.get("secretName") or source["name"]
        found = self._store.find(plural, self._namespace, wanted)
        if found is None:
            words = f'MountVolume.SetUp failed for volume "{volume}" : {plural[:-1]} "{wanted}" not found'
            raise NotReady("FailedMount", words)
        data = files_of(plural, found)
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        path.mkdir(parents=True, exist_ok=True)
        for item in items:
            file = path / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data[item["key"]])
            file.chmod(item.get("mode") or mode)

    def order(self, container: Object) -> Order:
        """How to start a container. Raises NotReady for a variable from a Secret that is missing."""
        spec, folder = self._pod["spec"], self.container_folder(container["name"])
        volumes = {volume["name"]: volume for volume in spec.get("volumes") or ()}
        binds, shm_bytes = [], None
        for mount in container.get("volumeMounts") or ():
            volume = volumes[mount["name"]]
            if mount["mountPath"] == SHARED_MEMORY and "emptyDir" in volume:
                shm_bytes = int(quantity((volume["emptyDir"] or {}).get("sizeLimit") or "1Gi"))
                continue
            source = self._source(volume)
            if sub := mount.get("subPath"):
                source = posixpath.join(source, sub)
            binds.append(Mount(source, mount["mountPath"], bool(mount.get("readOnly"))))
        folder.mkdir(parents=True, exist_ok=True)
        context = {
            **(spec.get("securityContext") or {}),
            **(container.get("securityContext") or {}),
        }
        return Order(
            argv=[*(container.get("command") or ()), *(container.get("args") or ())],
            env=self._env(container),
            cwd=container.get("workingDir") or "/",
            stage=str(folder / "stage"),
            binds=binds,
            shm_bytes=shm_bytes,
            uid=context.get("runAsUser"),
            gid=context.get("runAsGroup"),
            groups=[group for group in (context.get("fsGroup"),) if group is not None],
        )

    def _source(self, volume: Object) -> str:
        if "hostPath" in volume:
            path = Path(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
            return str(path)
        return str(self._path / "volumes" / volume["name"])

    def _env(self, container: Object) -> dict[str, str]:
        env = {"PATH": PATH, "HOME": "/root", "HOSTNAME": self._pod["metadata"]["name"]}
        for source in container.get("envFrom") or ():
            plural, name = "secrets", (source.get("secretRef") or {}).get("name")
            if name is None:
                plural, name = "configmaps", source["configMapRef"]["name"]
            env |= {key: text.decode() for key, text in self._files(plural, name).items()}
        for variable in container.get("env") or ():
            value = variable.get("value", "")
            if "valueFrom" in variable:
                value = self._value_from(variable["valueFrom"])
            env[variable["name"]] = value
        return env

    def _value_from(self, source: Object) -> str:
        if "fieldRef" in source:
            return _field(self._pod, source["fieldRef"]["fieldPath"])
        plural, key = "secrets", source.get("secretKeyRef")
        if key is None:
            plural, key = "configmaps", source["configMapKeyRef"]
        return self._files(plural, key["name"])[key["key"]].decode()

    def _files(self, plural: str, name: str) -> dict[str, bytes]:
        found = self._store.find(plural, self._namespace, name)
        if found is None:
            raise NotReady("CreateContainerConfigError", f'{plural[:-1]} "{name}" not found')
        return files_of(plural, found)


def _contents(volume: Object) -> Iterator[tuple[str, Object, int]]:
    if "secret" in volume:
        yield "secrets", volume["secret"], volume["secret"].get("defaultMode", 0o644)
    if "configMap" in volume:
        yield "configmaps", volume["configMap"], volume["configMap"].get("defaultMode", 0o644)
    for source in (volume.get("projected") or {}).get("sources") or ():
        yield from _contents(source)


def files_of(plural: str, found: Object) -> dict[str, bytes]:
    data: dict[str, Any] = found.get("data") or {}
    if plural == "secrets":
        return {key: base64.b64decode(value) for key, value in data.items()}
    return {key: value.encode() for key, value in data.items()}


def _field(pod: Object, path: str) -> str:
    if "['" in path:  # metadata.labels['key']
        start, _, key = path.partition("['")
        found: Any = _walk(pod, start)
        return str(found.get(key.removesuffix("']"), ""))
    if path in ("status.podIP", "status.hostIP"):
        return "127.0.0.1"
    return str(_walk(pod, path))


def _walk(thing: Any, path: str) -> Any:
    for part in path.split("."):
        if part not in thing:
            raise Refused(
                422, "Invalid", f"error converting fieldPath: field label not supported: {path}"
            )
        thing = thing[part]
    return thing
