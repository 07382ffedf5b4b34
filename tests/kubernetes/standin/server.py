"""The API over HTTP: lists, watches, writes, logs and exec."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.kubernetes.standin import patches
from tests.kubernetes.standin.cluster import Cluster
from tests.kubernetes.standin.objects import (
    KINDS,
    Matches,
    Object,
    Refused,
    field_selector,
    is_over,
    label_selector,
    not_found,
    too_old,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAX_BYTES = 3 * 1024 * 1024
STATUS_OK: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


class Server:
    """``requests``: how many there were, by method (WATCH is one) and kind."""

    def __init__(self, cluster: Cluster, token: str, bookmark_seconds: float) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._token = token
        self._bookmark_seconds = bookmark_seconds
        self.requests: Counter[tuple[str, str]] = Counter()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BYTES, middlewares=[self._answer_refusals])
        app.router.add_get("/version", self._version)
        app.router.add_get("/api", self._versions)
        app.router.add_get("/apis", self._groups)
        groups = {kind.group for kind in KINDS.values()}
        for group in groups:
            root = f"/apis/{group}" if "/" in group else f"/api/{group}"
            app.router.add_get(root, functools.partial(self._resources, group))
            for place in ("/namespaces/{namespace}", ""):
                one = f"{root}{place}/{{plural}}/{{name}}"
                app.router.add_get(f"{root}{place}/{{plural}}", self._list)
                app.router.add_post(f"{root}{place}/{{plural}}", self._create)
                app.router.add_delete(f"{root}{place}/{{plural}}", self._delete_many)
                app.router.add_get(one, self._get)
                app.router.add_put(one, self._put)
                app.router.add_patch(one, self._patch)
                app.router.add_delete(one, self._delete)
                app.router.add_get(f"{one}/{{sub}}", self._get_part)
                app.router.add_post(f"{one}/{{sub}}", self._post_part)
                app.router.add_put(f"{one}/{{sub}}", self._put)
                app.router.add_patch(f"{one}/{{sub}}", self._patch)
        return app

    @web.middleware
    async def _answer_refusals(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.headers.get("Authorization") != f"Bearer {self._token}":
                raise Refused(401, "Unauthorized", "Unauthorized")
            verb = (
                "WATCH" if request.query.get("watch") in ("1", "true", "True") else request.method
            )
            self.requests[verb, request.match_info.get("plural", "")] += 1
            if request.match_info.get("plural", "pods") not in KINDS:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            return await handler(request)
        except Refused as refused:
            return web.json_response(refused.status(), status=refused.code)
        except web.HTTPNotFound:
            unknown = Refused(404, "NotFound", "the server could not find the requested resource")
            return web.json_response(unknown.status(), status=404)

    async def _version(self, request: web.Request) -> web.Response:
        minor = str(self._cluster.minor)
        told = {
            "major": "1",
            "minor": minor,
            "gitVersion": f"v1.{minor}.0",
            "platform": "linux/amd64",
        }
        return web.json_response(told)

    async def _versions(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, request: web.Request) -> web.Response:
        found = []
        for group in {kind.group for kind in KINDS.values() if "/" in kind.group}:
            name, _, version = group.partition("/")
            told = {"groupVersion": group, "version": version}
            found.append({"name": name, "versions": [told], "preferredVersion": told})
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": found})

    async def _resources(self, group: str, request: web.Request) -> web.Response:
        found = [
            {
                "name": plural,
                "singularName": kind.name.lower(),
                "namespaced": kind.namespaced,
                "kind": kind.name,
                "verbs": ["get", "list", "watch", "create", "patch", "update", "delete"],
            }
            for plural, kind in KINDS.items()
            if kind.group == group
        ]
        told = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group}
        return web.json_response({**told, "resources": found})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = request.match_info["plural"], request.match_info.get("namespace")
        matches = _selection(request)
        if request.query.get("watch") in ("1", "true", "True"):
            return await self._watch(request, plural, namespace, matches)
        kind, found = KINDS[plural], self._store.select(plural, namespace, matches)
        version, start = self._store.version, 0
        if token := request.query.get("continue"):
            # The rest of a list is that of now: tests look at no snapshot.
            start, version = map(int, token.split("-"))
            if version < self._store.oldest:
                raise too_old(version, self._store.oldest)
        limit = int(request.query.get("limit") or 0) or len(found)
        metadata: Object = {"resourceVersion": str(version)}
        if start + limit < len(found):
            metadata |= {"continue": f"{start + limit}-{version}"}
        metadata |= (
            {"remainingItemCount": len(found) - start - limit} if "continue" in metadata else {}
        )
        items = found[start : start + limit]
        return web.json_response(
            {
                "kind": f"{kind.name}List",
                "apiVersion": kind.group,
                "metadata": metadata,
                "items": items,
            }
        )

    async def _watch(
        self, request: web.Request, plural: str, namespace: str | None, matches: Matches
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)

        async def send(kind: str, thing: Object) -> None:
            await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")

        asked = request.query.get("resourceVersion") or "0"
        since = int(asked)
        if since == 0:
            since = self._store.version
            for thing in self._store.select(plural, namespace, matches):
                await send("ADDED", thing)
        seconds = float(request.query.get("timeoutSeconds") or 0) or None
        try:
            async with asyncio.timeout(seconds):
                async for event in self._store.watch(
                    plural, namespace, matches, since, self._bookmark_seconds
                ):
                    if event is not None:
                        await send(*event)
                    elif request.query.get("allowWatchBookmarks") in ("true", "True", "1"):
                        version = {"resourceVersion": str(self._store.version)}
                        kind = KINDS[plural]
                        about = {"kind": kind.name, "apiVersion": kind.group, "metadata": version}
                        await send("BOOKMARK", about)
        except (TimeoutError, ConnectionResetError):
            pass
        except Refused as refused:
            await send("ERROR", refused.status())
        with contextlib.suppress(ConnectionResetError):
            await response.write_eof()
        return response

    def _one(self, request: web.Request) -> tuple[str, Object]:
        plural = request.match_info["plural"]
        namespace = request.match_info.get("namespace", "")
        return plural, self._store.get(plural, namespace, request.match_info["name"])

    async def _get(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._one(request)[1])

    async def _create(self, request: web.Request) -> web.Response:
        plural, namespace = request.match_info["plural"], request.match_info.get("namespace", "")
        given = await request.json()
        if KINDS[plural].namespaced and namespace:
            thing = self._cluster.admission.admit(plural, namespace, given)
        else:
            thing = {"spec": {}, "status": {}, **given}
            thing["status"] = {"phase": "Active"} if plural == "namespaces" else thing["status"]
        return web.json_response(self._store.create(plural, thing), status=201)

    async def _put(self, request: web.Request) -> web.Response:
        plural, thing = self._one(request)
        given = await request.json()

        def replace(new: Object) -> None:
            kept = {key: new["metadata"][key] for key in ("uid", "creationTimestamp")}
            before = {key: new.get(key) for key in ("status", "spec")}
            new.update(given)
            new["metadata"] = {**given["metadata"], **kept}
            _check_template(plural, before["spec"], new)
            if request.match_info.get("sub") != "status" and before["status"] is not None:
                new["status"] = before["status"]

        expected = given["metadata"].get("resourceVersion")
        return web.json_response(self._store.change(plural, thing, replace, expected))

    async def _patch(self, request: web.Request) -> web.Response:
        plural, thing = self._one(request)
        patch = await request.json()
        expected = None
        if isinstance(patch, dict):
            expected = (patch.get("metadata") or {}).pop("resourceVersion", None)

        def change(new: Object) -> None:
            before = json.loads(json.dumps(new.get("spec")))
            patches.apply(new, patch, request.content_type)
            _check_template(plural, before, new)

        return web.json_response(self._store.change(plural, thing, change, expected))

    async def _delete(self, request: web.Request) -> web.Response:
        plural, thing = self._one(request)
        self._delete_one(plural, thing, request, await _options(request))
        namespace, name = request.match_info.get("namespace", ""), request.match_info["name"]
        return web.json_response(self._store.find(plural, namespace, name) or STATUS_OK)

    async def _delete_many(self, request: web.Request) -> web.Response:
        plural, options = request.match_info["plural"], await _options(request)
        found = self._store.select(plural, request.match_info.get("namespace"), _selection(request))
        for thing in found:
            self._delete_one(plural, thing, request, options)
        kind = KINDS[plural]
        return web.json_response(
            {"kind": f"{kind.name}List", "apiVersion": kind.group, "items": found}
        )

    def _delete_one(
        self, plural: str, thing: Object, request: web.Request, options: Object
    ) -> None:
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted and wanted != thing["metadata"]["uid"]:
            words = f"the UID in the precondition ({wanted}) does not match the UID in record"
            raise Refused(409, "Conflict", words)
        policy = request.query.get("propagationPolicy") or options.get("propagationPolicy")
        grace = request.query.get("gracePeriodSeconds", options.get("gracePeriodSeconds"))
        self._cluster.deletion.delete(plural, thing, policy, None if grace is None else int(grace))

    async def _get_part(self, request: web.Request) -> web.StreamResponse:
        match request.match_info["sub"]:
            case "status":
                return await self._get(request)
            case "log":
                return await self._log(request)
            case "exec":
                return await self._exec(request)
        raise web.HTTPNotFound

    async def _post_part(self, request: web.Request) -> web.StreamResponse:
        match request.match_info["sub"]:
            case "exec":
                return await self._exec(request)
            case "eviction":
                self._cluster.disrupt(
                    self._one(request)[1], "EvictionByEvictionAPI", "Eviction API: evicting"
                )
                return web.json_response(STATUS_OK, status=201)
        raise web.HTTPNotFound

    async def _log(self, request: web.Request) -> web.StreamResponse:
        _, pod = self._one(request)
        name = request.query.get("container") or pod["spec"]["containers"][0]["name"]
        kubelet = self._cluster.kubelets.get(pod["spec"].get("nodeName", ""))
        if kubelet is None or kubelet.is_lost:
            raise Refused(500, "InternalError", "connection refused")
        path = self._cluster.folder / pod["spec"].get("nodeName", "none") / pod["metadata"]["uid"]
        log = path / "containers" / name / "log"
        if not log.exists():
            words = f'container "{name}" in pod "{pod["metadata"]["name"]}" is waiting to start'
            raise Refused(400, "BadRequest", words)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        with log.open("rb") as file:
            while True:
                is_last = request.query.get("follow") not in ("true", "True") or self._is_over(pod)
                while piece := _last_lines(file.read(), request):
                    await response.write(piece)
                if is_last:
                    break
                await asyncio.sleep(0.05)
        await response.write_eof()
        return response

    def _is_over(self, pod: Object) -> bool:
        metadata = pod["metadata"]
        found = self._store.find("pods", metadata["namespace"], metadata["name"])
        return found is None or is_over(found)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        _, pod = self._one(request)
        kubelet = self._cluster.kubelets.get(pod["spec"].get("nodeName", ""))
        run = kubelet.run_of(pod) if kubelet is not None and not kubelet.is_lost else None
        name = request.query.get("container") or pod["spec"]["containers"][0]["name"]
        container = run.containers.get(name) if run is not None else None
        if container is None or container.main is None:
            raise not_found("pods", pod["metadata"]["name"])
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        async for piece in container.run_inside(request.query.getall("command")):
            if not isinstance(piece, int):
                await socket.send_bytes(bytes([piece[0]]) + piece[1])
                continue
            told: Object = {"metadata": {}, "status": "Success"}
            if piece != 0:
                cause = {"reason": "ExitCode", "message": str(piece)}
                told = {
                    "metadata": {},
                    "status": "Failure",
                    "reason": "NonZeroExitCode",
                    "message": f"command terminated with non-zero exit code: exit status {piece}",
                    "details": {"causes": [cause]},
                }
            await socket.send_bytes(b"\x03" + json.dumps(told).encode())
        await socket.close()
        return socket


def _selection(request: web.Request) -> Matches:
    tests = [
        make(text)
        for make, name in ((label_selector, "labelSelector"), (field_selector, "fieldSelector"))
        if (text := request.query.get(name))
    ]
    return lambda thing: all(test(thing) for test in tests)


def _last_lines(text: bytes, request: web.Request) -> bytes:
    lines, limit = request.query.get("tailLines"), request.query.get("limitBytes")
    if lines is not None:
        text = b"".join(text.splitlines(keepends=True)[-int(lines) :])
    return text if limit is None else text[: int(limit)]


async def _options(request: web.Request) -> Object:
    return await request.json() if request.can_read_body else {}


def _check_template(plural: str, before: Object | None, new: Object) -> None:
    if plural == "jobs" and before is not None and before["template"] != new["spec"]["template"]:
        words = f'Job.batch "{new["metadata"]["name"]}" is invalid: spec.template: Invalid value'
        raise Refused(422, "Invalid", f"{words}: field is immutable")
