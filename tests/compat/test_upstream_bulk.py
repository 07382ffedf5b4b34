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
