"""One action on many experiments, by the requests of the published client."""

from __future__ import annotations

from tests.compat.conftest import Submitted
from tests.compat.upstream_client import UpstreamClient


def test_pause_activate_kill_and_archive(upstream: UpstreamClient, submitted: Submitted) -> None:
    script = """
from determined.common.api import bindings

config = {
    "name": "one-of-many", "labels": ["many"], "entrypoint": "python3 train.py",
    "hyperparameters": {}, "searcher": {"name": "single", "metric": "x"}}
finished = client.get_experiment(int(args[0]))
first, second = (client.create_experiment(config, args[1]) for _ in range(2))
session = first._session

def act(name, ids=(), project=1, **filters):
    request = getattr(bindings, f"v1{name}ExperimentsRequest")
    given = {"filters": bindings.v1BulkExperimentFilters(**filters)} if filters else {}
    answer = getattr(bindings, f"post_{name}Experiments")(
        session, projectId=project, body=request(experimentIds=list(ids), projectId=project, **given))
    return {str(one.id): one.error for one in answer.results}

def states():
    return [client.get_experiment(one.id).state.value for one in (first, second)]

ids = [first.id, finished.id, second.id, 999999]
found = {"ids": [first.id, second.id]}
found["pause"] = act("Pause", ids)
found["paused"] = states()
found["activate"] = act("Activate", [first.id], project=-1)
found["kill"] = act("Kill", project=-1, labels=["many"])  # of all projects
for one in (first, second):
    one.wait(interval=0.2)
found["archive"] = act("Archive", labels=["many"], archived=False)
found["again"] = act("Archive", labels=["many"])
found["archived"] = client.get_experiment(second.id).archived
show(found)
"""
    found = upstream.sdk(script, submitted.id, submitted.model)
    first, second = map(str, found["ids"])
    both = {first: "", second: ""}
    refused = found["pause"].pop(str(submitted.id))
    assert "is COMPLETED and cannot become PAUSED" in refused
    assert found["pause"].pop("999999") == "not found: experiment 999999 does not exist"
    assert found["pause"] == both
    assert found["paused"] == ["STATE_PAUSED", "STATE_PAUSED"]
    assert found["activate"] == {first: ""}
    assert found["kill"] == both
    assert found["archive"] == both
    assert found["again"] == {}
    assert found["archived"] is True


def test_runs(upstream: UpstreamClient, submitted: Submitted) -> None:
    script = """
import json
from determined.common.api import bindings

session = client.get_experiment(int(args[0]))._session
field = {"kind": "field", "columnName": "experimentId", "operator": "=", "value": int(args[0])}
filter = json.dumps({"filterGroup": {"kind": "group", "conjunction": "and", "children": [field]}})
body = bindings.v1SearchRunsRequest(filter=filter, sort="id=asc", limit=10)
answer = bindings.post_SearchRuns(session, body=body)
ids = [run.id for run in answer.runs]
given = bindings.v1ArchiveRunsRequest(projectId=1, runIds=ids[:1])
columns = bindings.get_GetProjectColumns(session, id=1).columns
activity = bindings.v1PostUserActivityRequest(
    activityType=bindings.v1ActivityType.GET, entityId=1, entityType=bindings.v1EntityType.PROJECT)
bindings.post_PostUserActivity(session, body=activity)
show({
    "runs": [run.to_json() for run in answer.runs],
    "total": answer.pagination.total,
    "archived": [one.error for one in bindings.post_ArchiveRuns(session, body=given).results],
    "columns": [one.column for one in columns],
    "recent": [one.id for one in bindings.get_GetProjectsByUserActivity(session, limit=3).projects],
})
"""
    found = upstream.sdk(script, submitted.id)
    assert (len(found["runs"]), found["total"]) == (2, 2)
    run = found["runs"][0]
    assert run["state"] == "STATE_COMPLETED"
    assert run["experiment"]["isMultitrial"] is True
    assert "is part of a search" in found["archived"][0]
    assert {"id", "startTime"} < set(found["columns"])
    assert found["recent"] == [1]
