"""The Helm chart as `helm` renders it: over all values files of its folder ``ci``, without a cluster."""

from __future__ import annotations

import base64
import functools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import kubernetes_validate
import pytest
import yaml

from determined import __version__
from determined.common.cluster_config import reading
from determined_deployments.agent.config import AgentConfig
from determined_deployments.filled_settings import fill
from determined_service.base.settings import Settings
from tests.helm_programs import program

CHART = Path(__file__).parents[2] / "deployments/helm/determined-prefect"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
OLDEST_SCHEMAS = "1.25"
RELEASES = ("1.20", OLDEST_SCHEMAS, "1.31", kubernetes_validate.latest_version())
"""What is rendered for 1.20 is compared with the oldest schemas, but for what is not in them any more."""
GONE = {"policy/v1beta1"}

Json = dict[str, Any]


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("helm"), *words], capture_output=True, text=True, timeout=120)


@functools.cache
def rendered(values: Path | None = None, release: str = "1.31", *options: str) -> tuple[Json, ...]:
    """The objects of `helm template`, with the hooks."""
    given = ["-f", str(values)] if values is not None else []
    done = helm("template", "r", CHART, "-n", "det", "--kube-version", release, *given, *options)
    assert done.returncode == 0, done.stderr
    return tuple(found for found in yaml.safe_load_all(done.stdout) if found)


def refusal(tmp_path: Path, values: Json) -> str:
    """What helm says about values that it refuses."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = helm("template", "r", CHART, "-n", "det", "-f", file)
    assert done.returncode != 0, "it was accepted"
    return done.stderr


def of_kind(objects: tuple[Json, ...], kind: str, end: str = "") -> list[Json]:
    return [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(end)]


def pods(objects: tuple[Json, ...]) -> Iterator[tuple[str, Json]]:
    """Every pod that the chart makes: the name of its owner, and its ``spec``."""
    for one in objects:
        if "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def filled(text: str, secrets: Path, missing: str = "") -> Any:
    """Settings as the process reads them, every secret ``secret/of@NAME``."""
    for name in re.findall(r"\$\((?:url:)?([a-z0-9-]+)\)", text):
        content = f"secret/of@{name}"
        if name == "prefect-auth":
            content = "user:secret"
        elif name.endswith("-url"):
            content = f"postgresql://user:{name}@host/db"
        (secrets / name).write_text(content)
    return fill(yaml.safe_load(text), secrets)


every_values = pytest.mark.parametrize("values", VALUES, ids=lambda file: file.stem)


def test_there_are_ten_values_files() -> None:
    assert len(VALUES) >= 10


@every_values
def test_lint(values: Path) -> None:
    done = helm("lint", "--strict", CHART, "-f", values)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("release", RELEASES)
@every_values
def test_each_object_is_valid(values: Path, release: str) -> None:
    objects = rendered(values, release)
    assert len(
        {
            (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
            for one in objects
        }
    ) == len(objects)
    for one in objects:
        if not (release == "1.20" and one["apiVersion"] in GONE):
            schemas = OLDEST_SCHEMAS if release == "1.20" else release
            kubernetes_validate.validate(one, schemas, strict=True)


def test_the_release_is_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@every_values
def test_settings_are_read_by_the_service(
    values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings,) = of_kind(rendered(values), "ConfigMap", "-settings")
    file = tmp_path / "service.json"
    file.write_text(json.dumps(filled(settings["data"]["service.json"], tmp_path)))
    monkeypatch.setenv("DET_SERVICE_CONFIG", str(file))
    found = Settings.load()
    assert found.is_reachable or found.host == "127.0.0.1"
    for url in (found.db_url, found.prefect_db_url.get_secret_value()):  # type: ignore[union-attr]
        parts = urlsplit(url)
        assert parts.scheme == "postgresql" and parts.hostname and parts.path.strip("/")
    if "db-password" in settings["data"]["service.json"]:
        assert unquote(urlsplit(found.db_url).password or "") == "secret/of@db-password"
    config = tmp_path / "cluster.yaml"
    config.write_text(settings["data"]["cluster.yaml"])
    cluster, _ = reading.read_file(config)
    wanted = yaml.safe_load(values.read_text()).get("resourcePools", [{"pool_name": "default"}])
    assert [pool.pool_name for pool in cluster.resource_pools] == [
        one["pool_name"] for one in wanted
    ]
    # Else Prefect would show them as pools of processes.
    assert {cluster.manager_of(pool.pool_name).type for pool in cluster.pools} == {"kubernetes"}


@every_values
def test_settings_are_read_by_the_agents(values: Path, tmp_path: Path) -> None:
    given = yaml.safe_load(values.read_text())
    found = [one for one in of_kind(rendered(values), "ConfigMap") if "agent.json" in one["data"]]
    wanted = given.get("resourcePools", [{"pool_name": "default"}])
    wanted = [one for one in wanted if (one.get("agent") or {}).get("enabled", True)]
    assert len(found) == len(wanted)
    for config, pool in zip(found, wanted, strict=True):
        settings = AgentConfig.model_validate(filled(config["data"]["agent.json"], tmp_path))
        assert settings.launcher == "kubernetes"
        assert settings.resource_pool == pool["pool_name"]
        assert settings.agent_token.get_secret_value() == "secret/of@agent-token"
        asked = (pool.get("agent") or {}).get("kubernetes") or {}
        assert settings.kubernetes.max_slots == asked.get("max_slots")
        roles = of_kind(rendered(values), "Role", config["metadata"]["name"])
        for role in roles:
            assert role["metadata"]["namespace"] == settings.kubernetes.namespace
        counts = of_kind(rendered(values), "ClusterRole", config["metadata"]["name"])
        # The right to see nodes is there only where they are counted.
        has_account = not given.get("agents", {}).get("kubeconfigSecret")
        assert bool(counts) is (has_account and "max_slots" not in asked)
        assert bool(roles) is has_account


@every_values
def test_every_secret_of_settings_is_mounted_where_they_are_filled(values: Path) -> None:
    objects = rendered(values)
    configs = {one["metadata"]["name"]: one["data"] for one in of_kind(objects, "ConfigMap")}
    for name, spec in pods(objects):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        if "settings" not in volumes:
            continue
        text = "".join(configs[volumes["settings"]["configMap"]["name"]].values())
        wanted = set(re.findall(r"\$\((?:url:)?([a-z0-9-]+)\)", text))
        sources = volumes["secrets"]["projected"]["sources"]
        mounted = {item["path"] for source in sources for item in source["secret"]["items"]}
        assert wanted <= mounted, name
        if "-agent-" in name:
            # An agent has no way into the databases.
            assert mounted == {"agent-token", "prefect-auth"}
        # Nor has Postgres one into Redis; its pod names no settings.
        assert ("prefect-redis-url" in mounted) is ("prefect-redis-url" in wanted), name


def test_the_volume_of_checkpoints_is_beside_the_pools_own() -> None:
    objects = rendered(CHART / "ci/shared-folder-values.yaml")
    (config,) = of_kind(objects, "ConfigMap", "-agent-default")
    spec = json.loads(config["data"]["agent.json"])["kubernetes"]["pod_spec"]["spec"]
    assert [one["name"] for one in spec["volumes"]] == ["data", "checkpoints"]
    containers = {one["name"]: one for one in spec["containers"]}
    assert [one["mountPath"] for one in containers["determined-container"]["volumeMounts"]] == [
        "/data",
        "/checkpoints",
    ]
    assert "volumeMounts" not in containers["sidecar"]
    # The service hands files out, and the agent deletes them.
    mounted = {
        name
        for name, pod in pods(objects)
        if any(one["mountPath"] == "/checkpoints" for one in pod["containers"][0]["volumeMounts"])
    }
    assert mounted == {"r-determined-prefect", "r-determined-prefect-agent-default"}


def test_the_generated_secret_has_every_key_and_stays() -> None:
    objects = rendered()
    (secret,) = of_kind(objects, "Secret")
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    wanted = {
        item["key"]
        for _, spec in pods(objects)
        for volume in spec["volumes"]
        if "projected" in volume
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    assert wanted == set(secret["data"])


def test_with_secrets_of_ones_own_nothing_is_generated() -> None:
    values = CHART / "ci/existing-secrets-values.yaml"
    objects = rendered(values)
    assert not of_kind(objects, "Secret")
    # As GitOps wants it: the same objects each time.
    rendered.cache_clear()
    assert rendered(values) == objects


@every_values
def test_no_pod_has_more_than_it_needs(values: Path) -> None:
    for name, spec in pods(rendered(values)):
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        # Of all pods the agents' alone speak to Kubernetes, and what removes their leftovers.
        token = spec["automountServiceAccountToken"]
        assert token is False or "-agent-" in name or name.endswith("-leftovers"), name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= set(container["resources"])
            assert not any("valueFrom" in one for one in container["env"]), name


def test_rights_of_an_agent_are_in_the_tasks_namespace() -> None:
    objects = rendered(CHART / "ci/small-values.yaml")
    assert not of_kind(objects, "ClusterRole") and not of_kind(objects, "ClusterRoleBinding")
    (role,) = of_kind(objects, "Role")
    assert role["metadata"]["namespace"] == "det-tasks" != "det"
    for rule in role["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
    names = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert names == {"jobs", "pods", "pods/log", "pods/exec", "secrets", "events"}


def test_a_policy_holds_for_each_component_and_for_tasks() -> None:
    objects = rendered(CHART / "ci/small-values.yaml")
    policies = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"]
        for one in of_kind(objects, "NetworkPolicy")
    }
    tasks = policies["det-tasks", "r-determined-prefect-tasks"]
    assert tasks["podSelector"] == {} and set(tasks["policyTypes"]) == {"Ingress", "Egress"}
    reached = [
        where.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/component")
        for rule in tasks["egress"]
        for where in rule.get("to", [])
    ]
    # The service, the outside in IPv4 and IPv6, and the storage of these values.
    assert reached == ["service", None, None, None]
    outside = tasks["egress"][2]["to"][0]["ipBlock"]
    assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(outside["except"])
    (into,) = policies["det", "r-determined-prefect-postgres"]["ingress"]
    components = [
        one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in into["from"]
    ]
    assert components == ["service", "prefect", "migration"]
    # No pod of a task is among them, and every pod of the release is selected by one policy.
    labels = {
        one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for one in objects
        if "template" in one.get("spec", {}) and one["kind"] != "Job"
    }
    selected = {
        policy["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for (namespace, _), policy in policies.items()
        if namespace == "det"
    }
    assert labels == selected == {"service", "prefect", "postgres", "agent"}


def test_several_processes_of_the_service_are_kept_apart_and_one_stays() -> None:
    values = CHART / "ci/production-values.yaml"
    (budget,) = of_kind(rendered(values), "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1
    assert not of_kind(rendered(CHART / "ci/small-values.yaml"), "PodDisruptionBudget")
    (old,) = of_kind(rendered(values, "1.20"), "PodDisruptionBudget")
    assert (budget["apiVersion"], old["apiVersion"]) == ("policy/v1", "policy/v1beta1")


@pytest.mark.parametrize(
    ("values", "source"),
    [
        ("production", {"secret": {"secretName": "postgres-ca", "key": "ca.crt"}}),
        ("several", {"configMap": {"name": "company-authorities", "key": "bundle.pem"}}),
    ],
)
def test_who_speaks_to_a_postgres_with_tls_has_the_certificate_of_its_authority(
    values: str, source: Json
) -> None:
    objects = rendered(CHART / f"ci/{values}-values.yaml")
    ((kind, wanted),) = source.items()
    seen = set()
    for name, spec in pods(objects):
        (container,) = spec["containers"]
        volumes = {one["name"]: one for one in spec["volumes"]}
        env = {one["name"]: one["value"] for one in container["env"]}
        assert ("db-cert" in volumes) is ("PGSSLROOTCERT" in env), name
        if "db-cert" not in volumes:
            continue
        seen.add(name.removeprefix("r-determined-prefect"))
        mounted = dict(volumes["db-cert"][kind])
        assert mounted.pop("items") == [{"key": wanted["key"], "path": "root.crt"}]
        assert mounted.items() >= {k: v for k, v in wanted.items() if k != "key"}.items()
        mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert env["PGSSLROOTCERT"] == f"{mounts['db-cert']}/root.crt"
    assert seen == {"", "-prefect", "-migration"}
    assert not any("db-cert" in str(spec) for _, spec in pods(rendered()))


def test_several_of_each_are_kept_apart_and_one_stays() -> None:
    objects = rendered(CHART / "ci/several-values.yaml")
    budgets = {one["metadata"]["name"] for one in of_kind(objects, "PodDisruptionBudget")}
    assert budgets == {"r-determined-prefect", "r-determined-prefect-prefect"}
    for name in budgets:
        (one,) = [
            each for each in of_kind(objects, "Deployment") if each["metadata"]["name"] == name
        ]
        assert one["spec"]["replicas"] == 2
        affinity = one["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        (rule,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        labels = rule["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert labels.items() <= one["spec"]["template"]["metadata"]["labels"].items()
    # An agent is one per pool, however many there are of the others.
    assert [
        one["spec"]["replicas"] for one in of_kind(objects, "Deployment", "-agent-default")
    ] == [1]


def test_several_processes_of_prefects_server_have_a_redis_between_them() -> None:
    objects = rendered(CHART / "ci/traefik-values.yaml")
    (server,) = of_kind(objects, "Deployment", "-prefect-prefect")
    assert server["spec"]["replicas"] == 2
    (budget,) = of_kind(objects, "PodDisruptionBudget", "-prefect-prefect")
    assert (
        budget["spec"]["selector"]["matchLabels"].items()
        <= server["spec"]["template"]["metadata"]["labels"].items()
    )
    (secret,) = of_kind(objects, "Secret")
    given = base64.b64decode(secret["data"]["prefect-redis-url"]).decode()
    assert given == "redis://:p%2Fw@redis.example.com:6379/0"
    # Nowhere else: the address has a password in it.
    assert sum(given in json.dumps(one) for one in objects) == 0


def test_an_upgrade_does_not_restart_postgres() -> None:
    """Its one pod, number 0, is behind the partition, unless the administrator asks for it."""
    for options, partition in (((), 1), (("--set", "db.update=true"), 0)):
        objects = rendered(CHART / "ci/small-values.yaml", "1.31", *options)
        (server,) = of_kind(objects, "StatefulSet")
        assert server["spec"]["replicas"] == 1
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
        assert server["spec"]["updateStrategy"] == strategy


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ("production", {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"}),
        ("traefik", {"traefik.ingress.kubernetes.io/router.entrypoints": "websecure"}),
    ],
)
def test_an_ingress_has_what_its_controller_needs(values: str, wanted: Json) -> None:
    (ingress,) = of_kind(rendered(CHART / f"ci/{values}-values.yaml"), "Ingress")
    annotations = ingress["metadata"]["annotations"]
    assert wanted.items() <= annotations.items()
    other = "traefik" if values == "production" else "nginx"
    assert not any(other in name for name in annotations)
    (tls,) = ingress["spec"]["tls"]
    assert tls == {
        "secretName": "det-tls",
        "hosts": ["det.example.com", "*.tasks.example.com"],
    }
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == tls["hosts"]


def test_annotations_of_ones_own_win() -> None:
    name = "nginx.ingress.kubernetes.io/proxy-read-timeout"
    option = f"ingress.annotations.{name.replace('.', chr(92) + '.')}=60"
    values = CHART / "ci/production-values.yaml"
    (ingress,) = of_kind(rendered(values, "1.31", "--set-string", option), "Ingress")
    assert ingress["metadata"]["annotations"][name] == "60"


def test_jobs_in_a_namespace_that_stays_are_removed_after_the_agents_rights() -> None:
    assert not of_kind(rendered(CHART / "ci/small-values.yaml"), "Job", "-leftovers")
    assert not of_kind(rendered(CHART / "ci/other-cluster-values.yaml"), "Job", "-leftovers")
    for values, wanted in (
        ("shared-folder", ["training/r-determined-prefect-default"]),
        ("gpus", ["spot-tasks/r-determined-prefect-p-"]),
    ):
        objects = rendered(CHART / f"ci/{values}-values.yaml")
        (job,) = of_kind(objects, "Job", "-leftovers")
        found = job["spec"]["template"]["spec"]["containers"][0]["args"]
        assert len(found) == len(wanted)
        assert all(one.startswith(start) for one, start in zip(found, wanted, strict=True))
        agents = {
            json.loads(one["data"]["agent.json"])["agent_id"]
            for one in of_kind(objects, "ConfigMap")
            if "agent.json" in one["data"]
        }
        assert {one.partition("/")[2] for one in found} <= agents
        hooks = [
            one
            for kind in ("ServiceAccount", "Role", "RoleBinding", "Job")
            for one in of_kind(objects, kind, "-leftovers")
        ]
        assert len(hooks) == 4
        for one in hooks:
            assert one["metadata"]["annotations"]["helm.sh/hook"] == "post-delete"
        (role,) = of_kind(objects, "Role", "-leftovers")
        assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"deletecollection"}


def test_migrations_run_before_an_upgrade_and_at_no_other_time() -> None:
    hooks = [one for one in rendered() if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    assert {one["kind"] for one in hooks} == {"ConfigMap", "Job"}
    assert {one["metadata"]["annotations"]["helm.sh/hook"] for one in hooks} == {"pre-upgrade"}
    # The settings of the next release are not there yet when the hook runs: it brings its own.
    (job,) = of_kind(tuple(hooks), "Job")
    (config,) = of_kind(tuple(hooks), "ConfigMap")
    volumes = {one["name"]: one for one in job["spec"]["template"]["spec"]["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == config["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"masterport": 8080}, "additional properties 'masterport' not allowed"),
        ({"service": {"replica": 2}}, "additional properties 'replica' not allowed"),
        ({"masterPort": "http"}, "got string, want integer"),
        ({"slotType": "tpu"}, "value must be one of 'cpu', 'cuda', 'rocm'"),
        ({"runAsUser": 0}, "minimum: got 0, want 1"),
        ({"resourcePools": [{"name": "x"}]}, "missing property 'pool_name'"),
        ({"checkpointStorage": {"bucket": "x"}}, "missing property 'type'"),
        (
            {"ingress": {"enabled": True, "host": "x.example.com"}},
            "ingress.trustedProxies: name the networks",
        ),
        ({"ingress": {"enabled": True}}, "ingress.host: the name"),
        ({"db": {"hostAddress": "x"}}, "db.password: of db.user"),
        (
            {"db": {"hostAddress": "x", "password": "secret", "sslMode": "verify-full"}},
            "db.sslMode: verify-full needs the certificate of the authority",
        ),
        ({"checkpointStorage": {"type": "shared_fs", "hostPath": "/c"}}, "baseline forbids"),
        ({"prefect": {"replicas": 2}}, "prefect.replicas: 2 processes"),
        ({"prefect": {"redis": {"url": "http://x"}}}, "does not match pattern"),
        (
            {"existingSecret": "x", "prefect": {"redis": {"url": "redis://x"}}},
            "prefect.redis.url: with existingSecret",
        ),
        ({"tasksNamespace": {"name": "det"}}, "would run in the namespace of the release"),
        (
            {"checkpointStorage": {"type": "shared_fs", "claim": "c", "hostPath": "/c"}},
            "would be removed with the release, and the claim",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else json.dumps(value),
)
def test_values_that_are_refused(tmp_path: Path, values: Json, said: str) -> None:
    assert said in refusal(tmp_path, values)
