"""What the API makes of a new object: fields that the version lacks, defaults, checks, quotas, webhooks."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import kubernetes_validate

from tests.kubernetes.standin.objects import Object, Refused, is_over, resource
from tests.kubernetes.standin.store import Store

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
SECRET_BYTES = 1024 * 1024
OURS = "determined-prefect.io/"
"""With this begin the labels of the platform's own objects."""
SCHEMAS_SINCE = 25
"""Schemas of older versions have no package."""
NOT_READY = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
    | {"tolerationSeconds": 300}
    for key in ("not-ready", "unreachable")
]


@dataclass
class Admission:
    """``quotas``: by namespace, the most of ``pods`` or ``count/jobs.batch``. ``webhooks``: by
    plural, the words with which an admission webhook refuses all new ones.
    """

    minor: int
    store: Store
    quotas: dict[str, dict[str, int]] = field(default_factory=dict)
    webhooks: dict[str, str] = field(default_factory=dict)

    def admit(self, plural: str, namespace: str, given: Object) -> Object:
        """The object to create. Raises Refused."""
        thing: Object = {**given, "metadata": dict(given.get("metadata") or {})}
        metadata = thing["metadata"]
        if "name" not in metadata and "generateName" in metadata:
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if namespace:
            metadata["namespace"] = namespace
            self._check_namespace(plural, namespace, metadata.get("name", ""))
        _check_names(plural, metadata)
        if self.minor >= SCHEMAS_SINCE and plural in ("jobs", "pods", "secrets"):
            self._check_schema(plural, metadata["name"], given)
        if plural == "secrets":
            _check_secret(thing)
        elif plural == "jobs":
            self._default_job(thing)
        elif plural == "pods":
            self._default_pod(thing)
        if plural in self.webhooks:
            words = f'admission webhook "policy.test" denied the request: {self.webhooks[plural]}'
            raise Refused(403, "Forbidden", words)
        self._check_quota(plural, namespace, metadata["name"])
        return thing

    def _check_namespace(self, plural: str, namespace: str, name: str) -> None:
        if self.store.get("namespaces", "", namespace)["status"]["phase"] == "Terminating":
            words = (
                f'{resource(plural)} "{name}" is forbidden: unable to create new content in namespace'
                f" {namespace} because it is being terminated"
            )
            raise Refused(403, "Forbidden", words)

    def _check_schema(self, plural: str, name: str, given: Object) -> None:
        """Of our own objects it is stricter than a cluster, which takes unknown fields with a warning."""
        labels = (given.get("metadata") or {}).get("labels") or {}
        is_ours = any(label.startswith(OURS) for label in labels)
        try:
            kubernetes_validate.validate(given, f"1.{self.minor}", strict=is_ours)
        except kubernetes_validate.ValidationError as error:
            where = ".".join(map(str, error.path))
            raise Refused(
                422, "Invalid", f'{resource(plural)} "{name}" is invalid: {where}: {error.message}'
            ) from None

    def _default_job(self, job: Object) -> None:
        # As a server does that does not know a field.
        spec = job["spec"] = dict(job["spec"])
        if self.minor < 22:
            spec.pop("suspend", None)
        if self.minor < 26:
            spec.pop("podFailurePolicy", None)
        uid = str(uuid.uuid4())
        template = spec["template"] = dict(spec["template"])
        template["metadata"] = dict(template.get("metadata") or {})
        labels = {"controller-uid": uid, "job-name": job["metadata"]["name"]}
        if self.minor >= 27:
            labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
        template["metadata"]["labels"] = {**(template["metadata"].get("labels") or {}), **labels}
        _check_labels("jobs", "template", template["metadata"]["labels"])
        if template["spec"].get("restartPolicy") not in ("Never", "OnFailure"):
            words = f'Job.batch "{job["metadata"]["name"]}" is invalid: spec.template.spec.restartPolicy'
            raise Refused(
                422, "Invalid", f'{words}: Required value: valid values: "OnFailure", "Never"'
            )
        defaults = {"backoffLimit": 6, "parallelism": 1, "completions": 1}
        job["spec"] = {**defaults, **spec, "selector": {"matchLabels": {"controller-uid": uid}}}
        job["status"] = {}

    def _default_pod(self, pod: Object) -> None:
        spec = pod["spec"] = dict(pod["spec"])
        if self.minor < 27:
            spec.pop("schedulingGates", None)
        pod["spec"] = {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "schedulerName": "default-scheduler",
            **spec,
            "tolerations": [*(spec.get("tolerations") or ()), *NOT_READY],
        }
        pod["status"] = {"phase": "Pending", "qosClass": "BestEffort"}

    def _check_quota(self, plural: str, namespace: str, name: str) -> None:
        counted = {"pods": "pods", "jobs": "count/jobs.batch"}.get(plural)
        limit = self.quotas.get(namespace, {}).get(counted or "")
        if limit is None:
            return
        used = sum(not is_over(one) for one in self.store.select(plural, namespace))
        if used >= limit:
            words = (
                f'{resource(plural)} "{name}" is forbidden: exceeded quota: quota, requested: {counted}=1,'
                f" used: {counted}={used}, limited: {counted}={limit}"
            )
            raise Refused(403, "Forbidden", words)


def _check_names(plural: str, metadata: Mapping[str, Any]) -> None:
    name = metadata.get("name") or ""
    # The name of a Job is the value of a label of its pod.
    if not NAME.fullmatch(name) or len(name) > (63 if plural == "jobs" else 253):
        words = f'{resource(plural)} "{name}" is invalid: metadata.name: Invalid value: "{name}"'
        raise Refused(422, "Invalid", f"{words}: a lowercase RFC 1123 subdomain is needed")
    _check_labels(plural, name, metadata.get("labels") or {})


def _check_labels(plural: str, name: str, labels: Mapping[str, str]) -> None:
    for key, value in labels.items():
        prefix, _, rest = key.rpartition("/")
        is_key = rest and LABEL.fullmatch(rest) and len(rest) <= 63
        is_value = isinstance(value, str) and LABEL.fullmatch(value) and len(value) <= 63
        if not is_key or not is_value or (prefix and not NAME.fullmatch(prefix)):
            words = f'{resource(plural)} "{name}" is invalid: metadata.labels: Invalid value: "{key}={value}"'
            raise Refused(
                422, "Invalid", f"{words}: a valid label is needed, at most 63 characters"
            )


def _check_secret(secret: Object) -> None:
    # What is given as text is kept as base64; the length is that of the content.
    data = dict(secret.get("data") or {})
    for key, text in (secret.pop("stringData", None) or {}).items():
        data[key] = base64.b64encode(text.encode()).decode()
    secret["data"] = data
    secret.setdefault("type", "Opaque")
    if sum(len(value) * 3 // 4 for value in data.values()) > SECRET_BYTES:
        words = f'Secret "{secret["metadata"]["name"]}" is invalid: data: Too long: may not be more than'
        raise Refused(422, "Invalid", f"{words} {SECRET_BYTES} bytes")
