"""The stand-in behaves as a cluster does where the launcher depends on it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client import ApiException
from kubernetes_asyncio.stream import WsApiClient

from tests.kubernetes.standin import admission
from tests.kubernetes.standin.running import StandIn, running
from tests.waiting import until_async

NAMESPACE = "default"


@pytest.fixture(params=["1.33"])
def standin(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    with running(request.param) as found:
        found.do(lambda cluster: cluster.add_node("a", {"nvidia.com/gpu": "2"}))
        yield found


@pytest_asyncio.fixture
async def api(standin: StandIn) -> AsyncIterator[client.ApiClient]:
    async with await config.new_client_from_config(str(standin.kubeconfig)) as made:
        yield made


def job(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "any", "command": command, **spec.pop("container", {})}
    pod = {"restartPolicy": "Never", "containers": [container], **spec.pop("pod", {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"of": "test"}},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}, **spec},
    }


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


async def make(api: client.ApiClient, body: dict[str, Any]) -> Any:
    return await client.BatchV1Api(api).create_namespaced_job(NAMESPACE, body)


async def pods(api: client.ApiClient, **options: Any) -> list[Any]:
    return list((await client.CoreV1Api(api).list_namespaced_pod(NAMESPACE, **options)).items)


async def pod_in(api: client.ApiClient, *phases: str) -> Any:
    async def look() -> Any:
        return next((one for one in await pods(api) if one.status.phase in phases), None)

    return await until_async(f"a pod in {phases}", look)


def gpus(count: int) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": str(count)}}}


@pytest.mark.parametrize("standin", ["1.20", "1.33"], indirect=True)
async def test_a_job_runs_its_command_in_a_container(api: client.ApiClient, tmp_path: Path) -> None:
    core = client.CoreV1Api(api)
    secret = {"metadata": {"name": "s"}, "stringData": {"order": "é"}}
    await core.create_namespaced_secret(NAMESPACE, {"apiVersion": "v1", "kind": "Secret", **secret})
    script = f"cat /run/of/the/secret/order; echo; echo $$; touch /new/here; echo $A; ls {tmp_path}"
    mounts = [
        {"name": "secret", "mountPath": "/run/of/the/secret", "readOnly": True},
        {"name": "new", "mountPath": "/new"},
    ]
    volumes = [
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "new", "emptyDir": {}},
    ]
    (tmp_path / "mine").touch()
    container = {"volumeMounts": mounts, "env": [{"name": "A", "value": "b"}]}
    await make(api, job("j", sh(script), container=container, pod={"volumes": volumes}))
    pod = await pod_in(api, "Succeeded", "Failed")
    log = await core.read_namespaced_pod_log(pod.metadata.name, NAMESPACE)
    assert log.split() == ["é", "1", "b", "mine"]
    assert pod.status.container_statuses[0].state.terminated.exit_code == 0
    assert not os.path.exists("/new")  # noqa: ASYNC240, PTH110

    async def conditions() -> Any:
        found = await client.BatchV1Api(api).read_namespaced_job("j", NAMESPACE)
        return [one.type for one in found.status.conditions or ()]

    await until_async("the Job is complete", conditions, equals=["Complete"])


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("", 0)])
async def test_exit_codes(api: client.ApiClient, script: str, code: int) -> None:
    await make(api, job("j", sh(script)))
    pod = await pod_in(api, "Succeeded", "Failed")
    assert pod.status.container_statuses[0].state.terminated.exit_code == code


async def test_a_program_that_is_not_there(api: client.ApiClient) -> None:
    await make(api, job("j", ["/does/not/exist"]))
    ended = (await pod_in(api, "Failed")).status.container_statuses[0].state.terminated
    assert (ended.exit_code, ended.reason) == (127, "StartError")
    assert "/does/not/exist" in ended.message


async def test_exec_signals_the_main_process(standin: StandIn, api: client.ApiClient) -> None:
    await make(
        api, job("j", sh("trap 'echo got; exit 5' USR1; echo on; while :; do sleep 0.05; done"))
    )
    pod = await pod_in(api, "Running")
    core = client.CoreV1Api(api)

    async def log() -> str:
        return str(await core.read_namespaced_pod_log(pod.metadata.name, NAMESPACE))

    await until_async("it runs", log, equals="on\n")
    made = await config.new_client_from_config(str(standin.kubeconfig))
    async with made, WsApiClient(made.configuration) as sockets:
        inside = client.CoreV1Api(sockets)
        said = await inside.connect_get_namespaced_pod_exec(
            pod.metadata.name,
            NAMESPACE,
            command=sh("echo out; kill -USR1 1"),
            stdout=True,
            stderr=True,
        )
        assert "out\n" in said
    ended = await pod_in(api, "Failed")
    assert ended.status.container_statuses[0].state.terminated.exit_code == 5


async def test_a_deleted_job_gets_sigterm_and_then_goes(
    api: client.ApiClient, tmp_path: Path
) -> None:
    there, got = tmp_path / "there", tmp_path / "got"
    script = f"trap 'touch {got}; exit 0' TERM; touch {there}; while :; do sleep 0.05; done"
    await make(api, job("j", sh(script)))
    await until_async("it runs", there.exists)
    batch = client.BatchV1Api(api)
    await batch.delete_namespaced_job("j", NAMESPACE, propagation_policy="Foreground")
    assert (await batch.read_namespaced_job("j", NAMESPACE)).metadata.deletion_timestamp

    async def jobs() -> Any:
        return (await batch.list_namespaced_job(NAMESPACE)).items

    await until_async("the Job is gone", jobs, equals=[])
    assert await pods(api) == []
    assert got.exists()


async def test_what_ignores_sigterm_is_killed(api: client.ApiClient, tmp_path: Path) -> None:
    there = tmp_path / "there"
    body = job(
        "j", sh(f"touch {there}; sleep 600 & wait"), pod={"terminationGracePeriodSeconds": 1}
    )
    await make(api, body)
    await until_async("it runs", there.exists)
    await client.BatchV1Api(api).delete_namespaced_job(
        "j", NAMESPACE, propagation_policy="Background"
    )
    await until_async("no pod", lambda: pods(api), equals=[])


@pytest.mark.parametrize(
    ("standin", "is_made_again"), [("1.20", True), ("1.33", False)], indirect=["standin"]
)
async def test_a_deleted_pod_is_made_again_by_old_controllers_only(
    api: client.ApiClient, is_made_again: bool
) -> None:
    await make(api, job("j", sh("exec sleep 600"), pod={"terminationGracePeriodSeconds": 1}))
    first = await pod_in(api, "Running")
    await client.CoreV1Api(api).delete_namespaced_pod(first.metadata.name, NAMESPACE)

    async def after() -> Any:
        found = await client.BatchV1Api(api).read_namespaced_job("j", NAMESPACE)
        others = [one for one in await pods(api) if one.metadata.uid != first.metadata.uid]
        return others or [one.reason for one in found.status.conditions or ()]

    found = await until_async("a second pod, or the end", after)
    assert (found != ["BackoffLimitExceeded"]) == is_made_again


async def test_gates_hold_a_pod_back(api: client.ApiClient) -> None:
    await make(api, job("j", sh(""), pod={"schedulingGates": [{"name": "x.test/gang"}]}))
    pod = await pod_in(api, "Pending")

    async def reason() -> Any:
        found = await pods(api)
        return [one.reason for one in found[0].status.conditions or ()]

    await until_async("it is gated", reason, equals=["SchedulingGated"])
    patch = [{"op": "remove", "path": "/spec/schedulingGates"}]
    await client.CoreV1Api(api).patch_namespaced_pod(pod.metadata.name, NAMESPACE, patch)
    await pod_in(api, "Succeeded")


async def test_a_suspended_job_has_no_pod(api: client.ApiClient) -> None:
    await make(api, job("j", sh(""), suspend=True))
    batch = client.BatchV1Api(api)

    async def conditions() -> Any:
        found = await batch.read_namespaced_job("j", NAMESPACE)
        return [one.type for one in found.status.conditions or ()]

    await until_async("it is suspended", conditions, equals=["Suspended"])
    assert await pods(api) == []
    await batch.patch_namespaced_job("j", NAMESPACE, {"spec": {"suspend": False}})
    await pod_in(api, "Succeeded")


@pytest.mark.parametrize("standin", ["1.20"], indirect=True)
async def test_an_old_server_drops_suspend_and_gates(api: client.ApiClient) -> None:
    body = job("j", sh(""), suspend=True, pod={"schedulingGates": [{"name": "x.test/gang"}]})
    await make(api, body)
    await pod_in(api, "Succeeded")


async def test_what_no_node_has_room_for_waits_with_the_schedulers_words(
    standin: StandIn, api: client.ApiClient
) -> None:
    standin.do(lambda cluster: cluster.add_node("b"))
    standin.do(lambda cluster: cluster.cordon("b"))
    await make(api, job("big", sh(""), container=gpus(3)))

    async def words() -> Any:
        found = (await pods(api)) or [None]
        conditions = (found[0].status.conditions or ()) if found[0] else ()
        return [(one.reason, one.message) for one in conditions]

    told = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable."
    await until_async("it says why", words, equals=[("Unschedulable", told)])
    standin.do(lambda cluster: cluster.add_node("c", {"nvidia.com/gpu": "4"}))
    await pod_in(api, "Succeeded")


async def test_a_pod_on_a_named_node(standin: StandIn, api: client.ApiClient) -> None:
    standin.do(lambda cluster: cluster.add_node("b"))
    await make(api, job("j", sh(""), pod={"nodeSelector": {"kubernetes.io/hostname": "b"}}))
    assert (await pod_in(api, "Succeeded")).spec.node_name == "b"


@pytest.mark.parametrize(
    ("state", "words"),
    [("missing", "not found"), ("denied", "pull access denied"), ("away", "no such host")],
)
async def test_an_image_that_cannot_be_pulled(
    standin: StandIn, api: client.ApiClient, state: str, words: str
) -> None:
    standin.do(lambda cluster: cluster.images.states.update(any=state))
    await make(api, job("j", sh("")))

    async def waiting() -> Any:
        found = await pods(api)
        statuses = found[0].status.container_statuses if found else None
        return statuses[0].state.waiting if statuses else None

    state_ = await until_async("it waits", waiting)
    assert state_.reason == "ErrImagePull"
    assert words in state_.message
    standin.do(lambda cluster: cluster.images.states.clear())
    await pod_in(api, "Succeeded")


@pytest.mark.parametrize("how", ["evict", "run_out_of_memory", "preempt"])
async def test_ends_that_come_from_outside(
    standin: StandIn, api: client.ApiClient, how: str
) -> None:
    await make(api, job("j", sh("exec sleep 600"), pod={"terminationGracePeriodSeconds": 1}))
    name = (await pod_in(api, "Running")).metadata.name
    standin.do(lambda cluster: getattr(cluster, how)(cluster.store.get("pods", NAMESPACE, name)))
    if how == "preempt":
        await until_async("the pod is gone", lambda: pods(api), equals=[])
        return
    status = (await pod_in(api, "Failed")).status
    ended = status.container_statuses[0].state.terminated
    assert (status.reason, ended.reason) == {
        "evict": ("Evicted", "Error"),
        "run_out_of_memory": (None, "OOMKilled"),
    }[how]
    assert ended.exit_code == 137


async def test_a_lost_nodes_pods_stay_and_run_on(
    standin: StandIn, api: client.ApiClient, tmp_path: Path
) -> None:
    beat = tmp_path / "beat"
    script = f"while :; do echo >> {beat}; sleep 0.05; done"
    await make(api, job("j", sh(script), pod={"terminationGracePeriodSeconds": 1}))
    await until_async("it runs", beat.exists)
    standin.do(lambda cluster: cluster.lose_node("a", evict=True))
    (pod,) = await pods(api)
    assert pod.metadata.deletion_timestamp is not None
    before = beat.stat().st_size
    await until_async("it runs on", lambda: beat.stat().st_size > before)
    standin.do(lambda cluster: cluster.return_node("a"))
    await until_async("the pod is gone", lambda: pods(api), equals=[])


async def test_a_node_that_is_gone_takes_its_pods_along(
    standin: StandIn, api: client.ApiClient
) -> None:
    await make(api, job("j", sh("exec sleep 600")))
    await pod_in(api, "Running")
    standin.do(lambda cluster: cluster.remove_node("a"))
    await until_async("the pod is gone", lambda: pods(api), equals=[])
    assert (await client.CoreV1Api(api).list_node()).items == []


@pytest.mark.parametrize("kind", ["jobs", "pods"])
@pytest.mark.parametrize("by", ["quota", "webhook"])
async def test_refusals(standin: StandIn, api: client.ApiClient, kind: str, by: str) -> None:
    counted = "pods" if kind == "pods" else "count/jobs.batch"
    if by == "quota":
        standin.do(lambda cluster: cluster.admission.quotas.update(default={counted: 0}))
    else:
        standin.do(lambda cluster: cluster.admission.webhooks.update({kind: "no such team"}))
    words = "exceeded quota" if by == "quota" else "denied the request: no such team"
    if kind == "jobs":
        with pytest.raises(ApiException, match=words) as refused:
            await make(api, job("j", sh("")))
        assert refused.value.status == 403
        return
    await make(api, job("j", sh("")))

    async def told() -> Any:
        events = (await client.CoreV1Api(api).list_namespaced_event(NAMESPACE)).items
        return [one.message for one in events if one.reason == "FailedCreate"]

    message = (await until_async("the Job's event", told))[0]
    assert words in message


async def test_codes_of_errors(api: client.ApiClient) -> None:
    batch, codes = client.BatchV1Api(api), []
    body = job("j", sh(""))
    ours = job("unknown", sh(""), nonsense=1)
    ours["metadata"]["labels"] = {f"{admission.OURS}agent": "a"}
    made = await make(api, body)
    stale = {"metadata": {"resourceVersion": "1"}, "spec": {"backoffLimit": 0}}
    for call in (
        lambda: make(api, body),
        lambda: batch.read_namespaced_job("other", NAMESPACE),
        lambda: batch.create_namespaced_job("nowhere", body),
        lambda: make(api, job("Bad_Name", sh(""))),
        lambda: make(api, job("x" * 64, sh(""))),
        lambda: make(api, ours),
        lambda: batch.patch_namespaced_job("j", NAMESPACE, stale),
        lambda: batch.delete_namespaced_job(
            "j", NAMESPACE, body=client.V1DeleteOptions(preconditions={"uid": "other"})
        ),
    ):
        with pytest.raises(ApiException) as refused:
            await call()
        codes.append(refused.value.status)
    assert codes == [409, 404, 404, 422, 422, 422, 409, 409]
    # Of others' objects a cluster takes what it does not know.
    await make(api, job("others", sh(""), nonsense=1))
    assert made.metadata.uid


async def test_a_watch_goes_on_from_its_version_and_is_told_when_that_is_too_old(
    standin: StandIn, api: client.ApiClient
) -> None:
    batch = client.BatchV1Api(api)
    await make(api, job("before", sh("")))
    listed = await batch.list_namespaced_job(NAMESPACE, label_selector="of=test")
    version = listed.metadata.resource_version
    await make(api, job("after", sh("")))
    stream = watch.Watch().stream(
        batch.list_namespaced_job,
        NAMESPACE,
        label_selector="of=test",
        resource_version=version,
        timeout_seconds=60,
    )
    seen = set()
    async with stream:
        async for event in stream:
            seen.add(event["object"].metadata.name)
            if seen == {"before", "after"}:  # its status changes, too
                break
    standin.do(lambda cluster: cluster.store.forget())
    await make(api, job("third", sh("")))
    with pytest.raises(ApiException) as refused:
        async for _ in watch.Watch().stream(
            batch.list_namespaced_job, NAMESPACE, resource_version=version, timeout_seconds=60
        ):
            pass
    assert refused.value.status == 410


async def test_bookmarks_come_and_broken_watches_end(
    standin: StandIn, api: client.ApiClient
) -> None:
    listed = await client.CoreV1Api(api).list_namespaced_pod(NAMESPACE)
    stream = watch.Watch().stream(
        client.CoreV1Api(api).list_namespaced_pod,
        NAMESPACE,
        resource_version=listed.metadata.resource_version,
        allow_watch_bookmarks=True,
        timeout_seconds=60,
    )
    kinds = []
    async for event in stream:
        kinds.append(event["type"])
        assert standin.do(lambda cluster: cluster.store.watches["pods"]) == 1
        standin.do(lambda cluster: cluster.store.break_watches())
    assert set(kinds) == {"BOOKMARK"}


async def test_a_server_that_was_away(
    standin: StandIn, api: client.ApiClient, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    await make(api, job("j", sh(f"while ! [ -e {end} ]; do sleep 0.05; done")))
    await pod_in(api, "Running")
    standin.go_away()
    with pytest.raises(Exception, match="Cannot connect"):
        await pods(api)
    end.touch()
    standin.come_back()
    await pod_in(api, "Succeeded")


async def test_a_namespace_goes_with_all_that_is_in_it(
    standin: StandIn, api: client.ApiClient
) -> None:
    standin.do(lambda cluster: cluster.add_namespace("ours"))
    batch, core = client.BatchV1Api(api), client.CoreV1Api(api)
    body = job("j", sh("exec sleep 600"), pod={"terminationGracePeriodSeconds": 1})
    await batch.create_namespaced_job("ours", body)
    await core.delete_namespace("ours")

    async def names() -> Any:
        return "ours" in [one.metadata.name for one in (await core.list_namespace()).items]

    await until_async("the namespace is gone", names, equals=False)
    assert (await batch.list_job_for_all_namespaces()).items == []
