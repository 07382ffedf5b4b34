"""`det trial support-bundle`"""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import FakeService, checkpoint, experiment, log_line, trial

SECRET = "do-not-tell"
PAT = "one-that-is-printed"
IN_ADDRESS = "pa55word-in-address"
RANDOM = "Zq8vR2mT6xW1bN4kL9pD3hS7"
SHAPED = "ghp_" + "a1B2" * 9
OUTSIDE = "pass-of-another-host"


def unpack(path: str) -> dict[str, str]:
    """Each file's text, by its name without the folder."""
    with tarfile.open(path) as archive:
        return {
            Path(member.name).name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
            if member.isfile()
        }


@pytest.fixture
def troubled(service: FakeService) -> FakeService:
    """A failed trial with logs, metrics and a checkpoint, and secrets in its configuration."""
    found = experiment(originalConfig=f"checkpoint_storage: {{secret_key: {SECRET}}}")
    found["config"]["checkpoint_storage"] = {
        "type": "s3",
        "bucket": "b",
        "access_key": SECRET,
        "secret_key": SECRET,
    }
    found["config"]["environment"] = {
        "environment_variables": {
            "cpu": [
                f"WANDB_API_KEY={SECRET}",
                "OMP_NUM_THREADS=2",
                f"GH_PAT={PAT}",
                f"PIP_INDEX_URL=https://me:{IN_ADDRESS}@pypi.example/simple",
                f"SETTING={RANDOM}",
                "DATA=/mnt/data",
            ]
        }
    }
    found["config"]["data"] = {"url": f"postgresql://me:{IN_ADDRESS}@db/data"}
    service.experiments[1] = found
    legs = [{"runId": 1, "reason": "agent a1 lost for 31 s"}]
    service.trials[1] = [trial(3, "ERROR", legs=legs, taskId="1.x")]
    service.logs[3] = [log_line(1, "x"), log_line(2, "y")]
    service.logs[3] += [
        log_line(3, f'said "{PAT}" and {RANDOM}, {SHAPED}'),
        log_line(4, f"fetching https://you:{OUTSIDE}@host/x"),
    ]
    service.metrics = [
        {"trialId": 3, "group": "validation", "totalBatches": 5, "metrics": {"accuracy": "NaN"}},
        {"trialId": 4, "group": "validation", "totalBatches": 6, "metrics": {"accuracy": 1}},
    ]
    saved = checkpoint("u-1", 3, 0.5)
    saved["training"]["experimentConfig"] = found["config"]
    saved["storage"] = found["config"]["checkpoint_storage"]
    service.checkpoints = [saved]
    service.explanations[1] = {"legs": [], "waiting": [{"trialId": None, "reason": "paused"}]}
    task = {"allocations": [7], "config": json.dumps(found["config"])}
    service.routes.insert(0, ("GET", r"/api/v1/tasks/1\.x", lambda r: {"task": task}))
    return service


def test_allocations_of_all_tasks(det: Det, troubled: FakeService, tmp_path: Path) -> None:
    troubled.trials[1][0] |= {"taskId": "1.x-1", "taskIds": ["1.x", "1.x-1"]}
    task = {"allocations": [8, 9], "config": "{}", "taskId": "1.x-1"}
    troubled.routes.insert(0, ("GET", r"/api/v1/tasks/1\.x-1", lambda r: {"task": task}))
    result = det("t", "support-bundle", 3, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    found = json.loads(unpack(result.stdout.strip())["allocations.json"])
    assert (found["taskId"], found["allocations"]) == ("1.x-1", [7, 8, 9])


def test_the_bundle_has_every_part(det: Det, troubled: FakeService, tmp_path: Path) -> None:
    result = det("t", "support-bundle", 3, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    path = result.stdout.strip()
    assert path.startswith(f"{tmp_path}/out/det-trial-3-")
    # No partial file stays beside it.
    assert [str(found) for found in (tmp_path / "out").iterdir()] == [path]
    files = unpack(path)

    def document(name: str) -> Any:
        return json.loads(files[name])

    assert document("trial.json")["legs"][0]["reason"] == "agent a1 lost for 31 s"
    assert document("experiment.json")["name"] == "digits"
    assert yaml.safe_load(files["config.yaml"])["checkpoint_storage"]["bucket"] == "b"
    assert document("explanation.json")["waiting"][0]["reason"] == "paused"
    assert document("allocations.json")["allocations"] == [7]
    assert document("checkpoints.json")[0]["uuid"] == "u-1"
    assert files["logs.txt"] == (
        "[1] x\n[2] y\n"
        '[3] said "********" and ********, ********\n'
        "[4] fetching https://you:********@host/x\n"
    )
    assert [json.loads(line)["id"] for line in files["logs.jsonl"].splitlines()] == [1, 2, 3, 4]
    reports = [json.loads(line) for line in files["metrics-validation.jsonl"].splitlines()]
    assert reports == [troubled.metrics[0]]
    assert document("cluster.json")["facts"]["url"] == "http://fake:8080"
    assert document("manifest.json")["missing"] == {}


def test_no_secret_leaves(det: Det, troubled: FakeService, tmp_path: Path) -> None:
    files = unpack(det("t", "support-bundle", 3, "-o", tmp_path).stdout.strip())
    for name, text in files.items():
        for secret in (SECRET, PAT, IN_ADDRESS, RANDOM, SHAPED, OUTSIDE):
            assert secret not in text, name
    variables = yaml.safe_load(files["config.yaml"])["environment"]["environment_variables"]
    assert variables["cpu"] == [
        "WANDB_API_KEY=********",
        "OMP_NUM_THREADS=2",
        "GH_PAT=********",
        "PIP_INDEX_URL=********",
        "SETTING=********",
        "DATA=/mnt/data",
    ]
    # A task has its configuration as text, a checkpoint its storage.
    config = json.loads(json.loads(files["allocations.json"])["config"])
    assert config["checkpoint_storage"]["secret_key"] == "********"
    assert json.loads(files["checkpoints.json"])[0]["storage"]["secret_key"] == "********"


def test_only_its_maker_may_read_it(det: Det, troubled: FakeService, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = det("t", "support-bundle", 3, "-o", tmp_path).stdout.strip()
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600


def test_unreadable_files_are_named(det: Det, troubled: FakeService, tmp_path: Path) -> None:
    troubled.routes = [route for route in troubled.routes if "tasks" not in route[1]]
    result = det("t", "support-bundle", 3, "-o", tmp_path)
    assert result.exit_code == 0
    assert "warning: allocations.json is missing" in result.stderr
    files = unpack(result.stdout.strip())
    assert "allocations.json" not in files
    assert "no such path" in json.loads(files["manifest.json"])["missing"]["allocations.json"]
    assert "logs.txt" in files


def test_a_trial_that_does_not_exist(det: Det, service: FakeService, tmp_path: Path) -> None:
    result = det("t", "support-bundle", 9, "-o", tmp_path / "out")
    assert (result.exit_code, result.stderr) == (1, "error: trial 9 does not exist\n")
    assert not (tmp_path / "out").exists()


def test_the_password_of_the_fake_is_in_no_file(
    det: Det, troubled: FakeService, tmp_path: Path
) -> None:
    files = unpack(det("t", "support-bundle", 3, "-o", tmp_path).stdout.strip())
    for token in troubled.tokens:
        assert all(token not in text for text in files.values())
