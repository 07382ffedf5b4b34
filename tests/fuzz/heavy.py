"""Large bodies that once blocked the service or filled its memory, with the expected status."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from determined.common.wire import limits
from tests.integration.service_api.test_who_may import Mine

EXPERIMENTS = "/api/v1/experiments"
CONFIG = (
    "name: heavy\nentrypoint: python3 train.py\n"
    "searcher: {name: single, metric: loss, max_length: {batches: 100}}\n"
)


@dataclass(frozen=True)
class Heavy:
    """``status``: of the answer. ``says``: a part of the answer's text. ``chunked``: sent without a
    Content-Length."""

    what: str
    path: str
    body: bytes
    status: int
    says: str = ""
    chunked: bool = False
    headers: dict[str, str] = field(default_factory=dict)


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _submission(config: str, **more: Any) -> bytes:
    return _json({"config": config, "activate": False, **more})


def _reports(*metrics: dict[str, Any], group: str = "training", **more: Any) -> bytes:
    reports = [
        {"group": group, "steps_completed": step, "metrics": one, **more}
        for step, one in enumerate(metrics)
    ]
    return _json({"run_id": 1, "reports": reports})


def bodies(mine: Mine, files_mib: int = 60) -> Iterator[Heavy]:
    """One after the other, because some have a hundred MiB; ``files_mib``: of the model definitions."""
    trial = f"/api/v1/trials/{mine.leg.trial_id}"
    batch = f"{trial}/metrics/batch"
    deep = "[" * 400 + "]" * 400
    yield Heavy(
        "300,000 keys in a configuration",
        EXPERIMENTS,
        _submission(CONFIG + "".join(f"key{i}: {i}\n" for i in range(300_000))),
        400,
        "bytes found, at most",
    )
    yield Heavy(
        "60,000 keys in a configuration",
        EXPERIMENTS,
        _submission(CONFIG + "data:\n" + "".join(f"  k{i}: {i}\n" for i in range(60_000))),
        400,
        "more than 20000 values",
    )
    yield Heavy(
        "10,000 unknown fields",
        EXPERIMENTS,
        _submission(CONFIG + "".join(f"key{i}: {i}\n" for i in range(10_000))),
        400,
        "unknown field",
    )
    yield Heavy(
        "a description of 10 MB",
        EXPERIMENTS,
        _submission(CONFIG + f"description: {'d' * 10_000_000}\n"),
        400,
        "bytes found, at most",
    )
    yield Heavy(
        "a description of 900 KB",
        EXPERIMENTS,
        _submission(CONFIG + f"description: {'d e ' * 225_000}\n"),
        400,
        "description: ",
    )
    yield Heavy(
        "200 KB of brackets as a configuration",
        EXPERIMENTS,
        _submission(CONFIG + f"data: {'[' * 200_000}"),
        400,
        "nested too deeply",
    )
    yield Heavy(
        "aliases of aliases",
        EXPERIMENTS,
        _submission(
            CONFIG
            + "data:\n  a0: &a0 [x]\n"
            + "".join(f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
        ),
        400,
        "more than 20000 values",
    )
    yield Heavy(
        "a billion trials at once",
        EXPERIMENTS,
        _submission(
            CONFIG.replace(
                "name: single", "name: random, max_trials: 999999999, max_concurrent_trials: 0"
            )
        ),
        400,
        "searcher.max_concurrent_trials",
    )
    yield Heavy(
        "a grid with an axis of a billion points",
        EXPERIMENTS,
        _submission(
            CONFIG.replace("name: single", "name: grid")
            + "hyperparameters: {a: {type: double, minval: 0, maxval: 1, count: 999999999}}\n"
        ),
        400,
        "hyperparameters.a.count",
    )
    yield Heavy("200 KB of brackets", EXPERIMENTS, b"[" * 200_000, 413, "lists and objects")
    yield Heavy("1 MB of brackets", "/api/v1/auth/login", b"[" * 1_000_000, 413)
    yield Heavy("a login of 2 MB", "/api/v1/auth/login", b'"' + b"x" * 2_000_000 + b'"', 413)
    yield Heavy("the same in chunks", "/api/v1/auth/login", b"x" * 2_000_000, 413, chunked=True)
    yield Heavy(
        "gzip",
        EXPERIMENTS,
        b"\x1f\x8b",
        400,
        "Content-Encoding",
        headers={"Content-Encoding": "gzip"},
    )
    content = base64.b64encode(random.Random(1).randbytes(files_mib * limits.MIB)).decode()
    files = [{"path": "big", "type": 48, "content": content}]
    submitted = _submission(CONFIG, modelDefinition=files)
    yield Heavy(f"{files_mib} MiB of files", EXPERIMENTS, submitted, 200)
    if files_mib > limits.SUBMISSION_BYTES // limits.MIB // 3:
        twice = _submission(CONFIG, modelDefinition=files * 2)
        yield Heavy(f"{2 * files_mib} MiB of files", EXPERIMENTS, twice, 413)
    yield Heavy(
        "60,000 files",
        EXPERIMENTS,
        _submission(CONFIG, modelDefinition=[{"path": f"f{i}"} for i in range(60_000)]),
        413,
        "lists and objects",
    )
    yield Heavy("a metric of 20 MB", batch, _reports({"loss": "x" * 20_000_000}), 413)
    yield Heavy("a metric of 5 MB", batch, _reports({"loss": "x" * 5_000_000}), 400, "metrics.loss")
    yield Heavy(
        "a metric's name of 20,000 characters", batch, _reports({"n" * 20_000: 1}), 400, "1024"
    )
    yield Heavy(
        "a group's name of 20,000 characters", batch, _reports({"a": 1}, group="g" * 20_000), 400
    )
    yield Heavy(
        "7 MB of numbers",
        batch,
        _reports(*[{f"m{i}": 0.123456789 + i for i in range(100)} for _ in range(3_000)]),
        200,
    )
    yield Heavy(
        "batch metrics of 7 MB",
        batch,
        _reports({"a": 1}, batch_metrics=[{"a": 0.123456789} for _ in range(49_000)] * 1),
        200,
    )
    yield Heavy("8 MB of empty lists", batch, b"[" + b"[]," * 2_600_000 + b"[]]", 413)
    checkpoint = {"uuid": mine.checkpoint, "allocationId": mine.leg.allocation_id}
    yield Heavy(
        "metadata 400 deep",
        "/api/v1/checkpoints",
        _json({**checkpoint, "metadata": {"a": json.loads(deep)}}),
        400,
        "more than 64 deep",
    )
    yield Heavy(
        "a trial's metadata 400 deep",
        f"/api/v1/runs/{mine.leg.trial_id}/metadata",
        b'{"metadata": {"a": ' + deep.encode() + b"}}",
        400,
        "more than 64 deep",
    )
    yield Heavy(
        "a checkpoint of 40,000 files",
        "/api/v1/checkpoints",
        _json({**checkpoint, "resources": {f"folder/file-{i}": i for i in range(40_000)}}),
        200,
    )
    line = {"taskId": mine.leg.task_id, "log": "["}
    yield Heavy(
        "a log line of 4 MB of brackets",
        "/api/v1/task/logs",
        _json({"logs": [line | {"log": "[" * 4_000_000}]}),
        200,
    )
    yield Heavy("10,000 log lines", "/api/v1/task/logs", _json({"logs": [line] * 10_000}), 200)
