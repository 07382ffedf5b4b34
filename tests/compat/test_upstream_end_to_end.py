"""The requests of Determined's own end-to-end suite, sent by the published client."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.compat.upstream_client import UpstreamClient

pytestmark = pytest.mark.timeout(900)

HELPERS = """
import re
from determined.common import api
from determined.common.api import bindings

session = client._determined._session

def run(entrypoint):
    config = {"name": "e2e", "entrypoint": entrypoint, "searcher": {"name": "single", "metric": "x"}}
    return client.create_experiment(config)

def refused(act):
    try:
        act()
    except (api.errors.APIException, api.errors.ForbiddenException) as error:
        return str(error)
"""

LOGS = (
    HELPERS
    + """
def logs(fetch, fields, pattern):
    found = {"follow": any(re.search(pattern, line.message, re.S) for line in fetch(follow=True))}
    found |= {name: any(True for _ in fetch(**{name: 10})) for name in ("head", "tail")}
    found["fields, followed"] = any(True for _ in fields(follow=True))
    for name, values in list(fields())[0].to_json().items():
        if values:
            name = re.sub("([A-Z])", lambda big: "_" + big[0].lower(), name)
            found[name] = any(True for _ in fetch(**{name: values[:1]}))
    found["no rank"] = any(True for _ in fetch(rank_ids=[-1]))
    found["no such rank"] = not any(True for _ in fetch(rank_ids=[-2]))
    return found

def of_task(task, pattern):
    from functools import partial
    fields = partial(bindings.get_TaskLogsFields, session, taskId=task)
    return logs(partial(api.task_logs, session, task), fields, pattern)

from functools import partial
trained = run("printf 'with\\\\000NUL\\\\n'")
assert trained.wait(interval=0.2).value == "STATE_COMPLETED"
(trial,) = trained.list_trials()
task = bindings.get_GetTrial(session, trialId=trial.id).trial.taskId
found = {
    "trial": logs(
        partial(api.trial_logs, session, trial.id),
        partial(bindings.get_TrialLogsFields, session, trialId=trial.id),
        "with\\0NUL",
    ),
    "task of a trial": of_task(task, "with\\0NUL"),
}
body = bindings.v1LaunchCommandRequest(config={"entrypoint": ["echo", "hello"]})
command = bindings.post_LaunchCommand(session, body=body).command
found["command"] = of_task(command.id, "hello")
mine = [one.id for one in bindings.get_GetCommands(session, users=["determined"]).commands]
others = [one.id for one in bindings.get_GetCommands(session, users=["admin"]).commands]
found["commands"] = {"by user": command.id in mine, "of another": command.id not in others}
show(found)
"""
)


def test_logs(upstream: UpstreamClient) -> None:
    found = upstream.sdk(LOGS)
    wrong = {
        kind: [name for name, good in asked.items() if not good] for kind, asked in found.items()
    }
    assert wrong == {kind: [] for kind in found}


REPORTS = """
import determined as det
with det.core.init() as context:
    for step in (1, 2, 3):
        context.train.report_validation_metrics(step, {"telc": 1 / step})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "state").write_text(str(step))
"""


def test_commands_about_an_experiment(upstream: UpstreamClient, tmp_path: Path) -> None:
    config = {"name": "e2e", "entrypoint": "true", "searcher": {"name": "single", "metric": "x"}}
    (tmp_path / "const.yaml").write_text(yaml.safe_dump(config))
    number = str(upstream.create(tmp_path / "const.yaml", "--paused"))

    def archived() -> bool:
        (described,) = upstream.json("experiment", "describe", number)
        return bool(described["experiment"]["archived"])

    upstream.det("experiment", "archive", number, code=1)
    upstream.det("experiment", "cancel", number)
    upstream.det("experiment", "archive", number)
    assert archived()
    upstream.det("experiment", "unarchive", number)
    assert not archived()
    label = "__det_test_dummy_label__"
    upstream.det("e", "label", "add", number, label)
    assert label in upstream.det("e", "describe", number).stdout
    upstream.det("e", "label", "remove", number, label)
    assert label not in upstream.det("e", "describe", number).stdout


def test_trying_out_a_model(upstream: UpstreamClient, tmp_path: Path) -> None:
    config = {
        "name": "e2e",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "telc"},
    }
    (tmp_path / "const.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "train.py").write_text(REPORTS)
    words = ("experiment", "create", "--test-mode")
    given = (str(tmp_path / "const.yaml"), str(tmp_path))
    assert "Model definition test succeeded" in upstream.det(*words, *given, timeout=300).stdout
    failed = upstream.det(*words, "--config=entrypoint=exit 99", *given, code=1, timeout=300)
    assert "resources failed with non-zero exit code" in failed.stdout


USERS = (
    HELPERS
    + """
import uuid
admin = client.Determined(os.environ["DET_MASTER"], "admin", args[0])._session
def user(**group):
    linked = bindings.v1AgentUserGroup(**group) if group else None
    made = bindings.v1User(active=True, admin=False, username=str(uuid.uuid4()), agentUserGroup=linked)
    body = bindings.v1PostUserRequest(user=made, password="")
    return bindings.post_PostUser(admin, body=body).user.agentUserGroup
linked = user(agentUid=1000, agentGid=1001, agentUser="username", agentGroup="groupname").to_json()
show({
    "none": user() is None,
    "linked": linked,
    "half": refused(lambda: user(agentUid=1000, agentGid=1001)),
    "not allowed": refused(lambda: bindings.get_GetMasterConfig(session)),
})
"""
)


def test_users(upstream: UpstreamClient) -> None:
    found = upstream.sdk(USERS, upstream.passwords["admin"])
    assert found["none"]
    linked = {
        "agentUid": 1000,
        "agentGid": 1001,
        "agentUser": "username",
        "agentGroup": "groupname",
    }
    assert found["linked"] == linked
    assert found["half"] and found["not allowed"]


def test_restarts_of_continued_trials(upstream: UpstreamClient, tmp_path: Path) -> None:
    config = {
        "name": "e2e",
        "entrypoint": "echo one more try; exit 3",
        "searcher": {"name": "single", "metric": "x"},
        "max_restarts": 2,
    }
    (tmp_path / "const.yaml").write_text(yaml.safe_dump(config))
    number = str(upstream.create(tmp_path / "const.yaml"))
    seen = []
    for again in ([], ["--config", "max_restarts=1"], None):
        upstream.wait(int(number), code=1)
        seen.append(upstream.sdk(TRIES, number))
        if again is not None:
            upstream.det("e", "continue", number, *again)
    tries, restarts, tasks, begun, ended = zip(*seen, strict=True)
    assert (tries, restarts) == ((3, 6, 8), (2, 2, 1))
    assert tasks[2] == [tasks[0][0], f"{tasks[0][0]}-1", f"{tasks[0][0]}-2"]
    assert len(set(begun)) == 1
    assert sorted(set(ended)) == list(ended)


TRIES = """
(trial,) = client.get_experiment(int(args[0])).list_trials()
from determined.common.api import bindings
found = bindings.get_GetTrial(trial._session, trialId=trial.id).trial
tries = sum("one more try" in line for line in trial.logs())
show([tries, found.restarts, found.taskIds, found.startTime, found.endTime])
"""
