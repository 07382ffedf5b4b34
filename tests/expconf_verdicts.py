"""Pieces of configurations that Determined's own schema takes or refuses, each with its verdict.

``tests/compat/test_upstream_schema.py`` asks the published schema, ``tests/unit/expconf`` asks ours.
"""

from __future__ import annotations

from typing import Any


def _size(size: Any) -> dict[str, Any]:
    return {"resources": {"shm_size": size}}


def _kerberos(section: Any) -> dict[str, Any]:
    return {"security": {"kerberos": section}}


def _container(**fields: Any) -> dict[str, Any]:
    container = {"name": "determined-container", **fields}
    return {"environment": {"pod_spec": {"spec": {"containers": [container]}}}}


TAKEN: list[dict[str, Any]] = [
    *map(_size, (4294967296, "4294967296", "1GiB", "1 G", "1 kb", "1b", ".5g", "1.5T", None)),
    *map(_kerberos, ({"config_file": "/etc/krb5.conf"}, None)),
    _container(),
    _container(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
    {"environment": {"image": None}},
    {"environment": {"image": {"cpu": None}}},
]
REFUSED: list[dict[str, Any]] = [
    *map(_size, ("1 gi", "1 i", "1ib", "1  G", "1.", "1 gI b", "G", "")),
    _kerberos({"config_file": 123}),
    *(_container(**{name: "x"}) for name in ("image", "command", "args", "working_dir", "ports")),
    _container(security_context={"runAsUser": 0}),
    {"environment": {"pod_spec": {"name": "x"}}},
    {"environment": {"pod_spec": {"spec": []}}},
    {"environment": {"pod_spec": {"spec": {"containers": {}}}}},
    {"environment": {"pod_spec": {"spec": {"containers": ["x"]}}}},
    {"environment": {"image": {"tpu": "x"}}},
]
