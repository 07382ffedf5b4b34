"""Experiments whose checkpoints are in S3: trained, resumed, downloaded, collected, deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from determined.experimental import Determined
from tests.local_cluster import LocalCluster
from tests.object_servers import Server, moto, s3_client, s3_section
from tests.outcomes import client
from tests.waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples/digits"

GANG = """
import determined as det
dist = det.core.DistributedContext.from_torch_distributed()
with det.core.init(distributed=dist) as core_context:
    checkpoint = core_context.checkpoint
    with checkpoint.store_path({"steps_completed": 1}, shard=True) as (path, uuid):
        (path / f"shard-{dist.rank}").write_text(str(dist.rank))
    with checkpoint.restore_path(uuid) as path:
        assert len(list(path.glob("shard-*"))) == 2
    if dist.rank == 0:
        with checkpoint.store_path({"steps_completed": 2}, wait=False) as (path, _):
            (path / "weights").write_bytes(bytes(100_000))
        core_context.train.report_validation_metrics(2, {"x": 1.0})
"""
CONFIG = {
    "name": "gang",
    "entrypoint": "python3 -m determined.launch.torch_distributed python3 script.py",
    "resources": {"slots_per_trial": 2},
    "searcher": {"name": "single", "metric": "x", "max_length": 1},
    "max_restarts": 0,
}


# Each step ends with a checkpoint in the background, which the test delays to act meanwhile: the first leg is
# paused in its second step, the next one dies in the fourth.
BACKGROUND = """
import os, pathlib, signal, time
import determined as det

hold, died = pathlib.Path(FOLDER, "hold"), pathlib.Path(FOLDER, "died")
info = det.get_cluster_info()
with det.core.init() as core_context:
    start = 0
    if info.latest_checkpoint:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            start = int((path / "step").read_text())
    print("going on after", start, flush=True)
    for step in range(start + 1, 6):
        core_context.train.report_training_metrics(step, {"leg": info.trial._trial_run_id})
        metadata = {"steps_completed": step}
        core_context.checkpoint.wait()
        pausing = step == 2 and start == 0
        dying = step == 4 and not died.exists()
        if pausing or dying:
            hold.touch()
        with core_context.checkpoint.store_path(metadata, wait=False) as (path, uuid):
            (path / "step").write_text(str(step))
            (path / "weights").write_bytes(bytes(100_000))
        print("storing", step, uuid, flush=True)
        if dying:
            died.touch()
            hold.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        while pausing and not core_context.preempt.should_preempt():
            time.sleep(0.02)
        if core_context.preempt.should_preempt():
            print("preempted after", step, flush=True)
            break
    else:
        core_context.train.report_validation_metrics(5, {"x": 1.0})
"""


@pytest.fixture
def section(s3_server: Server) -> dict[str, Any]:
    return s3_section(s3_server, prefix="some/where", save_trial_latest=9)


def keys(server: Server, section: dict[str, Any]) -> list[str]:
    """The objects below the prefix, TensorBoard's left out."""
    found = s3_client(server).list_objects_v2(Bucket=section["bucket"]).get("Contents", [])
    names = [one["Key"].removeprefix("some/where/") for one in found]
    return [name for name in names if "/tensorboard/" not in name]


def uuids(sdk: Determined, experiment_id: int) -> dict[str, int]:
    found = sdk.get_experiment(experiment_id).list_checkpoints()
    return {
        one.uuid: (one.metadata or {})["steps_completed"]
        for one in found
        if one.state is not None and one.state.name == "COMPLETED"
    }


def test_an_experiment_in_s3(
    cluster: LocalCluster, s3_server: Server, section: dict[str, Any], tmp_path: Path
) -> None:
    script = (EXAMPLE / "train.py").read_text()
    config = yaml.safe_load((EXAMPLE / "const.yaml").read_text()) | {"checkpoint_storage": section}
    config["searcher"]["max_length"] = {"epochs": 3}
    first = cluster.submit(tmp_path / "first", yaml.safe_dump(config), train_py=script)
    assert cluster.wait(first) == "COMPLETED", cluster.logs(first)
    sdk = client(cluster)
    (latest,) = [uuid for uuid, steps in uuids(sdk, first).items() if steps == 3]
    assert f"{latest}/state.pt" in keys(s3_server, section)

    # Its files, by the command and by the SDK.
    cluster.det("checkpoint", "download", latest, "--output-dir", str(tmp_path / "cli"))
    path = sdk.get_checkpoint(latest).download(str(tmp_path / "sdk"))
    state = (tmp_path / "cli" / "state.pt").read_bytes()
    assert (Path(path) / "state.pt").read_bytes() == state

    # Another experiment goes on from it.
    config["searcher"] |= {"max_length": {"epochs": 4}, "source_checkpoint_uuid": latest}
    second = cluster.submit(tmp_path / "second", yaml.safe_dump(config), train_py=script)
    assert cluster.wait(second) == "COMPLETED", cluster.logs(second)
    reports = sdk.get_experiment(second).get_trials()[0].iter_metrics("validation")
    assert min(report.steps_completed for report in reports) == 4

    # No file of a deleted checkpoint stays.
    folders = {key.partition("/")[0] for key in keys(s3_server, section)}
    assert folders == {*uuids(sdk, first), *uuids(sdk, second)}
    cluster.det("experiment", "delete", str(second), "--yes")
    cluster.det("checkpoint", "delete", *uuids(sdk, first), "--yes")
    assert keys(s3_server, section) == []
    sdk._session.close()


def test_packed_checkpoints_of_a_gang_and_in_the_background(
    cluster: LocalCluster, s3_server: Server, section: dict[str, Any], tmp_path: Path
) -> None:
    section["pack_small_files"] = True
    config = yaml.safe_dump(CONFIG | {"checkpoint_storage": section})
    experiment_id = cluster.submit(tmp_path, config, script_py=GANG)
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    sdk = client(cluster)
    (gangs, background) = sorted((found := uuids(sdk, experiment_id)), key=lambda uuid: found[uuid])
    resources = sdk.get_checkpoint(gangs).resources
    assert resources is not None
    assert set(resources) == {"shard-0", "shard-1", "metadata.json"}
    # One pack for each worker with several files; a single file is not packed.
    assert f"{gangs}/shard-1" in keys(s3_server, section)
    for uuid in (gangs, background):
        (pack,) = [
            key
            for key in keys(s3_server, section)
            if key.startswith(f"{uuid}/.det") and key.endswith(".tar")
        ]
    assert f"{background}/weights" not in keys(s3_server, section)
    assert not [key for key in keys(s3_server, section) if key.startswith(".")]
    policy = ("--save-experiment-best=0", "--save-trial-best=0", "--save-trial-latest=1")
    cluster.det("experiment", "set", "gc-policy", str(experiment_id), *policy, "--yes")
    until("one checkpoint left", lambda: list(uuids(sdk, experiment_id)), equals=[background])
    assert {key.partition("/")[0] for key in keys(s3_server, section)} == {background}

    # Files of a pack, by the commands.
    cluster.det("checkpoint", "download", background, "--output-dir", str(tmp_path / "whole"))
    assert (tmp_path / "whole" / "weights").read_bytes() == bytes(100_000)
    cluster.det("checkpoint", "rm", background, "--glob", "weights", "--yes")
    left = sdk.get_checkpoint(background)
    assert left.state is not None
    assert (left.state.name, set(left.resources or {})) == ("PARTIALLY_DELETED", {"metadata.json"})
    assert pack not in keys(s3_server, section)
    cluster.det("checkpoint", "download", background, "--output-dir", str(tmp_path / "left"))
    assert [path.name for path in (tmp_path / "left").iterdir()] == ["metadata.json"]
    sdk._session.close()


def test_paused_and_killed_while_a_checkpoint_is_on_its_way(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with moto(tmp_path) as server:
        section = s3_section(server, prefix="some/where", save_trial_latest=9)
        config = {
            **CONFIG,
            "name": "background",
            "entrypoint": "python3 script.py",
            "resources": {"slots_per_trial": 1},
            "searcher": {"name": "single", "metric": "x"},
            "max_restarts": 1,
            "checkpoint_storage": section,
        }
        script = BACKGROUND.replace("FOLDER", repr(str(tmp_path)))
        experiment_id = cluster.submit(tmp_path, yaml.safe_dump(config), script_py=script)
        sdk = client(cluster)
        cluster.wait_for_lines(experiment_id, "storing 2")
        cluster.det("experiment", "pause", str(experiment_id))
        cluster.wait_for_lines(experiment_id, "preempted after 2")
        # It was heard while the second was on its way: the leg ends, and the next begins, with that stored.
        assert list(uuids(sdk, experiment_id).values()) == [1]
        cluster.det("experiment", "activate", str(experiment_id))
        assert list(uuids(sdk, experiment_id).values()) == [1]
        (tmp_path / "hold").unlink()
        assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
        lines = cluster.wait_for_lines(experiment_id, "going on after")
        # Paused after 2; killed in 4, whose checkpoint is missing, while the checkpoint of 3 exists.
        assert [line.split()[-1] for line in lines] == ["0", "2", "3"]
        assert cluster.trials(experiment_id)[0]["restarts"] == 1
        (trial,) = sdk.get_experiment(experiment_id).get_trials()
        legs = {one.steps_completed: one.metrics["leg"] for one in trial.iter_metrics("training")}
        assert legs == {1: 1, 2: 1, 3: 2, 4: 3, 5: 3}
        found = uuids(sdk, experiment_id)
        assert sorted(found.values()) == [1, 2, 3, 4, 5]
        for uuid, step in found.items():
            path = sdk.get_checkpoint(uuid).download(str(tmp_path / uuid))
            assert (Path(path) / "step").read_text() == str(step)
        # Files of the killed process belong to no checkpoint, and are removed.
        until(
            "only the files of checkpoints",
            lambda: {key.partition("/")[0] for key in keys(server, section)},
            equals=found.keys(),
        )
        sdk._session.close()
