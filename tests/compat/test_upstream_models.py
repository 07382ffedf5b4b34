"""The published client's models against this registry."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.compat.conftest import Submitted
from tests.compat.upstream_client import UpstreamClient

pytestmark = pytest.mark.timeout(900)


def test_models_by_the_published_sdk(
    upstream: UpstreamClient, submitted: Submitted, tmp_path: Path
) -> None:
    script = """
from determined.common.api import errors

def refusal(act):
    try:
        act()
    except (errors.APIException, errors.BadRequestException) as error:
        return f"{type(error).__name__}: {error}"

name = args[0]
experiment = client.get_experiment(int(args[1]))
# The others go when the experiment has ended.
checkpoints = [trial.top_checkpoint().uuid for trial in experiment.list_trials()]
model = client.create_model(name, "numbers", {"a": 1})
none = model.get_version()
versions = [model.register_version(uuid).model_version for uuid in checkpoints]
model.add_metadata({"b": {"c": 2}})
model.remove_metadata(["a"])
model.set_labels(["x", "y"])
model.set_description("handwritten")
version = model.get_version(1)
version.set_name("first")
version.set_notes("# notes")
again = client.get_model(model.model_id)
model.reload()
other = client._determined.create_model(name + " two", workspace_name="Uncategorized")
other.move_to_workspace("Uncategorized")
other.archive()
archived = client.get_model(name + " two").archived
found = {
    "none": none,
    "versions": versions,
    "model": [again.name, again.description, again.metadata, again.labels, again.username,
              again.workspace_id, again.archived, again.creation_time <= again.last_updated_time],
    "latest": model.get_version().model_version,
    "listed": [one.model_version for one in model.list_versions()],
    "get_versions": [one.model_version for one in model.get_versions(client.OrderBy.ASC)],
    "version": [model.get_version(1).name, model.get_version(1).notes, version.comment],
    "trial": version.checkpoint.training.trial_id in [one.id for one in experiment.list_trials()],
    "metrics": list(version.get_metrics()),
    "models": [one.name for one in client.list_models(name=name)],
    "by_time": [one.name for one in client.get_models(
        sort_by=client.ModelSortBy.CREATION_TIME, order_by=client.OrderBy.DESC, name=name)],
    "labels": sorted(set(client.get_model_labels()) & {"x", "y"}),
    "archived": archived,
    "archived_change": refusal(lambda: other.set_labels(["z"])),
    "taken": refusal(lambda: client.create_model(name.upper())),
    "missing": refusal(lambda: client.get_model("no such model")),
    "workspace": refusal(lambda: model.move_to_workspace("other")),
    "held": refusal(lambda: version.checkpoint.delete()),
    "experiment": refusal(lambda: experiment.delete()),
    "unknown": refusal(lambda: model.register_version(args[2])),
}
for mode in (client.DownloadMode.DIRECT, client.DownloadMode.MASTER):
    path = version.checkpoint.download(os.path.join(args[3], mode.value), mode=mode)
    found[mode.value] = open(os.path.join(path, "state.txt")).read()
other.unarchive()
version.delete()
found["left"] = [one.model_version for one in model.list_versions()]
found["next"] = model.register_version(checkpoints[0]).model_version
model.delete()
other.delete()
found["gone"] = [one.name for one in client.list_models(name=name)]
show(found)
"""
    name = f"digits {uuid.uuid4().hex[:8]}"
    found = upstream.sdk(script, name, submitted.id, uuid.uuid4(), tmp_path)
    assert (found["none"], found["versions"]) == (None, [1, 2])
    facts = ["handwritten", {"b": {"c": 2}}, ["x", "y"], "determined", 1, False, True]
    assert found["model"] == [name, *facts]
    assert (found["latest"], found["listed"], found["get_versions"]) == (2, [2, 1], [1, 2])
    assert found["version"] == ["first", "# notes", ""]
    assert found["trial"] is True
    assert found["metrics"] == []
    assert found["models"] == [name, f"{name} two"]
    assert found["by_time"] == [f"{name} two", name]
    assert (found["labels"], found["archived"]) == (["x", "y"], True)
    assert "is archived" in found["archived_change"]
    assert f"there is a model '{name}' already" in found["taken"]
    assert "NotFoundException" in found["missing"]
    assert "there is no workspace 'other'" in found["workspace"]
    assert f"is version 1 of model '{name}'" in found["held"]
    assert "cannot be deleted, because checkpoint" in found["experiment"]
    assert "NotFoundException" in found["unknown"]
    assert found["direct"] == found["master"]
    assert found["master"] in ("0.1 6", "0.02 6")
    assert (found["left"], found["next"], found["gone"]) == ([2], 3, [])


def test_models_by_the_published_det(upstream: UpstreamClient, submitted: Submitted) -> None:
    name = f"by det {uuid.uuid4().hex[:8]}"
    checkpoint = upstream.sdk(
        "show(client.get_experiment(int(args[0])).top_checkpoint().uuid)",
        submitted.id,
    )
    made = upstream.json("m", "create", name, "--description", "numbers")
    assert (made["name"], made["description"], made["archived"]) == (name, "numbers", False)
    registered = upstream.json("m", "register-version", name, checkpoint)
    assert registered["modelVersion"]["version"] == 1
    assert checkpoint in upstream.det("m", "describe", name).stdout
    listed = upstream.json("m", "list-versions", name)["modelVersions"]
    assert [one["checkpoint"]["uuid"] for one in listed] == [checkpoint]
    assert name in upstream.det("m", "list", "--sort-by", "name", "--order-by", "desc").stdout
    upstream.det("m", "move", name, "-w", "Uncategorized")
    upstream.det("m", "delete", name)
    assert name not in upstream.det("m", "list").stdout
