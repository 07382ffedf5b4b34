"""Nothing that users of the cluster write reaches the terminal of another one as control characters."""

from __future__ import annotations

import ast
import copy
import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import determined.cli
from determined.cli import printing
from determined.cli.following.live import Panel
from determined.cli.following.tracker import Tracker
from determined.cli.output import tables
from determined.cli.root import Root
from determined.cli.root import app as cli
from tests.unit.cli.conftest import Det
from tests.unit.cli.test_cli_validate import GOOD
from tests.unit.sdk.fake_service import (
    FakeService,
    checkpoint,
    command,
    experiment,
    job,
    log_line,
    model,
    model_version,
    project,
    trial,
    workspace,
)

# Sets the title, clears the screen, colours by C1, turns the writing direction, overwrites the line.
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202elive\u2066\u2028\x7f\x00\r\x08end"
LONG = EVIL + "A" * 100_000
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# The only sequences of our own: the head of a table.
OURS = ("\x1b[1m", "\x1b[0m")

# Read as such, so the service does not let anybody choose them.
FACTS = {
    "state",
    "startTime",
    "creationTime",
    "lastUpdatedTime",
    "submissionTime",
    "timestamp",
    "level",
    "uuid",
    "reportTime",
    "resources",
}


def poisoned(value: Any, name: str = "") -> Any:
    """The same document with control characters in every text that people can choose, and long names."""
    if isinstance(value, dict):
        return {
            key: inner if key in FACTS or key == "searcher" else poisoned(inner, key)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [poisoned(inner, name) for inner in value]
    if isinstance(value, str):
        return value + (LONG if name in ("name", "reason", "description") else EVIL)
    return value


@pytest.fixture
def evil(service: FakeService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeService:
    """A service whose users have chosen control characters wherever they can."""
    monkeypatch.chdir(tmp_path)
    legs = [{"runId": 1, "state": "STATE_ERROR", "reason": "r", "agentId": "a", "trialId": 3}]
    found = experiment(
        state="COMPLETED", description="d", reason="r", workspaceName="w", projectName="p"
    )
    service.experiments[1] = poisoned(found)
    service.experiments[2] = poisoned(experiment(id=2))
    given = [trial(3, "ERROR", 0.5, legs=legs, reason="r", taskId="1.x"), trial(4, reason="r")]
    service.trials[1] = [poisoned(each) for each in given]
    for each in service.trials[1]:
        each["hparams"][f"{EVIL} lr"] = EVIL
        each["summaryMetrics"]["validation_metrics"][EVIL] = {"count": 1, "max": EVIL}
    service.explanations[1] = {
        "legs": poisoned(legs),
        "waiting": [{"trialId": 4, "since": None, "reason": LONG}],
    }
    service.logs[3] = [poisoned(log_line(n, "x")) for n in (1, 2)]
    service.logs[0] = service.logs[3]
    given_command = command(reason="r", config={EVIL: ["x"]}, resources=[], exitCode=None)
    service.commands = [poisoned({**given_command, "exitCode": None})]
    service.commands[0]["id"] = COMMAND_ID
    reported = {"totalBatches": 5, "metrics": {"avgMetrics": {EVIL: EVIL}}}
    service.workloads[3] = [{"training": reported}]
    service.checkpoints = [poisoned(checkpoint("u-1", 3, 0.5, reason="r"))]
    service.checkpoints[0]["resources"] = {EVIL: "3"}
    service.usage_csv = f'labels\n"{EVIL}"\n'
    service.checkpoints[0]["checksums"] = {EVIL: EVIL}
    device = {"type": "TYPE_CPU", "brand": LONG, "uuid": ""}
    slot = {"id": "0", "enabled": True, "device": device, "container": {"id": EVIL}}
    service.agents = [
        {"id": LONG, "slots": {"0": slot}, "resourcePools": [EVIL], "addresses": [EVIL]}
    ]
    service.passwords |= {LONG: "x", EVIL: "x"}
    service.pools = [{"name": EVIL, "description": LONG, "schedulerType": EVIL}]
    service.cluster_config = {"config": {"resource_pools": [{EVIL: LONG}]}, "refusal": EVIL}
    service.message = {"message": LONG, "startTime": None, "endTime": None}
    service.jobs = [poisoned(job(1))]
    service.waiting = [
        {"trialId": 4, "since": None, "slotsWanted": 1, "reason": LONG, "forecast": LONG}
    ]
    service.remarks = [LONG]
    service.workspace = poisoned(workspace()) | {"name": EVIL}
    service.project = poisoned(project()) | {"name": EVIL}
    service.model = poisoned(model(tags={EVIL: EVIL}, aliases={EVIL: 1}, metadata={EVIL: LONG}))
    service.versions = [
        poisoned(model_version(one, checkpoint=copy.deepcopy(service.checkpoints[0])))
        for one in (1, 2)
    ]
    hparams = service.versions[1]["checkpoint"]["training"]["hparams"]
    hparams[EVIL] = LONG
    move = {"alias": EVIL, "fromVersion": 1, "toVersion": 2, "username": EVIL, "time": None}
    service.moves = [move]
    run = {
        "id": 1,
        "state": "KEPT",
        "reason": LONG,
        "cause": EVIL,
        "endTime": "2026-01-01T00:00:00Z",
    }
    service.retraining_runs = [run]
    plan = {"schedule": {"cron": EVIL}, "on": [{"alias": {"model": EVIL, "alias": EVIL}}]}
    service.retrainings = [{"model": EVIL, "username": EVIL, "plan": plan, "lastRun": run}]
    tried = {"id": 1, "index": 0, "item": EVIL, "attempt": 1, "state": EVIL, "reason": LONG}
    tried |= {"cached": True, "best": {"metric": EVIL, "trialId": EVIL, "checkpoint": EVIL}}
    step = {"name": EVIL, "state": EVIL, "needs": [EVIL], "reason": LONG, "experiments": [tried]}
    step |= {"earlierExperiments": [tried], "startTime": None, "endTime": None}
    service.sources = [{"path": EVIL, "value": LONG, "source": EVIL}]
    service.template = {"name": EVIL, "config": {EVIL: LONG}, "workspaceId": 1}
    service.access_token = {"id": 1, "userId": 1, "username": EVIL, "description": LONG}
    service.access_token |= {"createdAt": None, "expiry": "9999-12-31T00:00:00Z", "revoked": False}
    service.new_access_token = {"token": EVIL, "tokenId": 1}
    service.pipeline = {
        "id": 1,
        "name": EVIL,
        "username": EVIL,
        "state": EVIL,
        "reason": LONG,
        "stepCount": 1,
        "completedSteps": 0,
        "startTime": None,
        "endTime": "2026-01-01T00:00:00Z",
        "steps": [step],
    }
    return service


COMMAND_ID = command()["id"]
CONFIG, PLAN, PIPELINE, TASK = "config.yaml", "plan.yaml", "pipeline.yaml", "task.yaml"
TEMPLATE = "template.yaml"
POLICY = "policy.yaml"
# Commands that show the service's answers, with their arguments.
SHOWING = {
    "agent disable": [EVIL],
    "agent enable": [EVIL],
    "agent list": [],
    "agent remove": [EVIL],
    "checkpoint describe": ["u-1"],
    "command config": [COMMAND_ID],
    "command describe": [COMMAND_ID[:5]],
    "command kill": [COMMAND_ID],
    "command list": [],
    "command logs": [COMMAND_ID],
    "command run": ["true"],
    "command set priority": [COMMAND_ID, "5"],
    "config-policies delete": ["tasks", "-w", EVIL],
    "config-policies describe": ["experiment"],
    "config-policies set": ["experiment", POLICY],
    "experiment list": ["--all", "--show_project"],
    "experiment list-trials": ["1"],
    "trial list": ["1"],
    "experiment list-checkpoints": ["1"],
    "experiment describe": ["1", "--metrics"],
    "experiment config": ["1"],
    "experiment logs": ["1"],
    "experiment wait": ["1"],
    "experiment kill": ["1,2"],
    "experiment cancel": ["1,2"],
    "experiment pause": ["2"],
    "experiment activate": ["2"],
    "experiment archive": ["1"],
    "experiment unarchive": ["1"],
    "experiment create": [CONFIG],
    "experiment continue": ["1"],
    "experiment label add": ["1", EVIL],
    "experiment label remove": ["1", f"a{EVIL}"],
    "experiment set name": ["1", EVIL],
    "experiment set description": ["1", EVIL],
    "experiment set gc-policy": [
        *("1", "--save-experiment-best=1", "--save-trial-best=1", "--save-trial-latest=1", "-y")
    ],
    "experiment set priority": ["1", "5"],
    "experiment set weight": ["1", "2"],
    "experiment set max-slots": ["1", "none"],
    "flow run": [CONFIG],
    "job list": [],
    "job update": [EVIL, "--ahead-of", EVIL],
    "job update-batch": [f"{EVIL}.resource-pool={EVIL}"],
    "job explain": ["1"],
    "master config show": [],
    "master cluster-message clear": [],
    "master cluster-message get": [],
    "master cluster-message set": ["-m", EVIL],
    "master info": [],
    "model create": [EVIL, "--description", EVIL],
    "model list": [],
    "model describe": [EVIL],
    "model list-versions": [EVIL],
    "model register-version": [EVIL, "u-1"],
    "model delete-version": [EVIL, "1"],
    "model delete": [EVIL],
    "model archive": [EVIL],
    "model unarchive": [EVIL],
    "model move": [EVIL, "-w", EVIL],
    "model diff": [EVIL, "1", "2"],
    "model alias set": [EVIL, EVIL, "2"],
    "model alias delete": [EVIL, EVIL],
    "model alias history": [EVIL],
    "pipeline run": [PIPELINE],
    "pipeline schedule": ["1", "--interval", "60"],
    "pipeline wait": ["1"],
    "pipeline list": [],
    "pipeline describe": ["1", "--history"],
    "pipeline resume": ["1"],
    "pipeline again": ["1"],
    "pipeline approve": ["1"],
    "pipeline cancel": ["1"],
    "pipeline delete": ["1"],
    "pipeline logs": ["1"],
    "resource-pool list": [],
    "resource-pool describe": [EVIL],
    "resources aggregated": ["2026-01-01", "2026-01-31"],
    "resources allocations": ["2026-01-01", "2026-01-31"],
    "resources raw": ["2026-01-01", "2026-01-31"],
    "retrain create": [PLAN],
    "retrain list": [],
    "retrain run": [EVIL],
    "retrain history": [EVIL],
    "retrain pause": [EVIL],
    "retrain resume": [EVIL],
    "retrain cancel": [EVIL],
    "retrain report": [EVIL, EVIL, "0.5"],
    "retrain approve": [EVIL],
    "retrain rollback": [EVIL],
    "retrain delete": [EVIL],
    "slot disable": [EVIL, "0"],
    "slot enable": [EVIL, "0"],
    "slot list": [],
    "task config": [COMMAND_ID],
    "task create": [TASK],
    "task fork": [COMMAND_ID, "-f"],
    "task kill": [COMMAND_ID],
    "task list": [],
    "task logs": [COMMAND_ID],
    "task pause": [COMMAND_ID],
    "task unpause": [COMMAND_ID],
    "token create": [EVIL, "--description", EVIL],
    "token describe": ["1"],
    "token edit": ["1", "--description", EVIL],
    "token list": [],
    "token login": [EVIL],
    "token revoke": ["1"],
    "template apply": [EVIL, CONFIG],
    "template create": [EVIL, TEMPLATE],
    "template describe": [EVIL],
    "template list": ["--details"],
    "template remove": [EVIL],
    "template set": [EVIL, TEMPLATE],
    "template set-value config": [EVIL, TEMPLATE],
    "trial describe": ["3", "--metrics"],
    "trial logs": ["3"],
    "trial kill": ["3", "4"],
    "user create": [EVIL, "--password=x"],
    "user edit": [EVIL, f"--display-name={EVIL}"],
    "user activate": [EVIL],
    "user deactivate": [EVIL],
    "user rename": [EVIL, EVIL],
    "user link-with-agent-user": [
        *(EVIL, "--agent-uid=1", f"--agent-user={EVIL}", "--agent-gid=1", "--agent-group=g")
    ],
    "notebook files": ["--all"],
    "workspace list": [],
    "workspace describe": [EVIL],
    "workspace create": [EVIL],
    "workspace edit": [EVIL, "--name", EVIL],
    "workspace archive": [EVIL],
    "workspace unarchive": [EVIL],
    "workspace delete": [EVIL, "--yes"],
    "workspace list-members": [EVIL],
    "workspace list-pools": [EVIL],
    "workspace list-projects": [EVIL],
    "project list": [EVIL],
    "project list-experiments": [EVIL, EVIL],
    "project describe": [EVIL, EVIL],
    "project create": [EVIL, EVIL],
    "project edit": [EVIL, EVIL, "--new_name", EVIL],
    "project archive": [EVIL, EVIL],
    "project unarchive": [EVIL, EVIL],
    "project move": [EVIL, EVIL, EVIL],
    "project delete": [EVIL, EVIL, "--yes"],
    "experiment move": ["1", EVIL, EVIL],
    "resource-pool bindings add": [EVIL, EVIL],
    "resource-pool bindings remove": [EVIL, EVIL],
    "resource-pool bindings replace": [EVIL, EVIL],
    "resource-pool bindings list-workspaces": [EVIL],
    "rbac assign-role": [EVIL, "-u", EVIL],
    "rbac describe-role": [EVIL],
    "rbac list-groups-roles": [EVIL],
    "rbac list-roles": [],
    "rbac list-users-roles": [EVIL],
    "rbac my-permissions": [],
    "rbac unassign-role": [EVIL, "-u", EVIL],
    "user-group add-user": [EVIL, EVIL],
    "user-group change-name": [EVIL, EVIL],
    "user-group create": [EVIL],
    "user-group delete": [EVIL, "--yes"],
    "user-group describe": [EVIL],
    "user-group list": [],
    "user-group remove-user": [EVIL, EVIL],
    "user whoami": [],
    "user defaults describe": [],
    "user defaults delete": [],
    "user list": [],
    "version": [],
    "cluster doctor": [],
}
# Commands that show only what this machine's user has written, or paths that they have made.
OTHERS = {
    *("experiment validate", "experiment schema", "experiment plot", "experiment delete"),
    *("experiment delete-tb-files", "experiment download", "experiment download-model-def"),
    *("experiment download-tensorboard", "checkpoint delete", "checkpoint rm", "preview-search"),
    *("checkpoint download", "trial download", "model download", "trial support-bundle"),
    *(
        "notebook start",
        "notebook open",
        "notebook delete-files",
        "tensorboard start",
        "tensorboard open",
        "open",
    ),
    *(
        "dev auth-token",
        "master logs",  # shown as all logs are, with control characters as text
        "prefect env",
        "user login",
        "user logout",
        "user change-password",
        "user defaults set",
        "agent start",
    ),
    *("shell start", "shell open", "shell config-ssh", "shell show-ssh-command"),
    "shell show_ssh_command",
    # The output of a program in the user's task, as with ssh.
    *("run", "exec", "attach", "trial dump"),
    "init",
    "experiment report",  # a file; tests/integration/front/test_report.py looks into it
}


# The same code as of commands.
OF_EVERY_KIND = {
    f"{kind} {name}"
    for kind in ("notebook", "shell", "tensorboard")
    for name in ("config", "describe", "kill", "list", "logs", "set priority")
}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command of the tree, by its full name."""
    if not hasattr(command, "list_commands"):
        yield " ".join(path)
        return
    for name in command.list_commands(None):
        inner = (
            command._load(name) if isinstance(command, Root) else command.get_command(None, name)
        )
        yield from leaves(inner, (*path, name.split("|")[0]))


def test_every_command_is_walked_or_known_to_show_nothing_of_others() -> None:
    own = {name for name in leaves(typer.main.get_command(cli)) if not name.startswith("deploy ")}
    assert own == SHOWING.keys() | OTHERS | OF_EVERY_KIND


def harmless(text: str, ours: bool = False) -> None:
    for sequence in OURS if ours else ():
        text = text.replace(sequence, "")
    assert CONTROL.findall(text) == []


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("name", SHOWING)
def test_commands_show_control_characters_as_text(
    det: Det, name: str, terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / CONFIG).write_text(GOOD)
    (tmp_path / TASK).write_text("entrypoint: [x]")
    (tmp_path / TEMPLATE).write_text("max_restarts: 1")
    (tmp_path / POLICY).write_text("constraints: {priority_limit: 1}")
    (tmp_path / PLAN).write_text(f"{{model: m, experiment: {CONFIG}}}")
    steps = f"[{{name: a, experiment: {CONFIG}}}]"
    (tmp_path / PIPELINE).write_text(f"{{name: p, steps: {steps}}}")
    monkeypatch.setattr(printing, "is_terminal", lambda out: terminal)
    result = det(*name.split(), *SHOWING[name])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.output.strip()
    harmless(result.stdout, ours=terminal)
    harmless(result.stderr)
    whole = (
        *("config-policies describe", "experiment config", "master config show"),
        "template describe",
    )
    if terminal and name not in whole:
        assert max(map(len, result.output.splitlines())) < 5000


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("name", ["experiment list", "user list", "trial describe", "agent list"])
def test_json_is_harmless_and_whole(det: Det, name: str) -> None:
    result = det(*name.split(), *SHOWING[name][:1], "--json")
    harmless(result.stdout)
    harmless(result.stderr)
    whole = [LONG[:-200], EVIL] if name in ("experiment list", "agent list") else [EVIL]

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                yield from texts(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from texts(inner)
        elif isinstance(value, str):
            yield value

    for wanted in whole:
        assert any(wanted in text for text in texts(json.loads(result.stdout)))


@pytest.mark.usefixtures("evil")
def test_csv_is_harmless_and_its_cells_are_whole(det: Det) -> None:
    result = det("e", "list", "--csv")
    harmless(result.stdout)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [row["Name"].count("A") for row in rows] == [100_000, 100_000]


@pytest.mark.usefixtures("evil")
def test_a_long_name_widens_no_other_line_of_a_pipe(det: Det, service: FakeService) -> None:
    service.experiments[3] = experiment(id=3)
    usual = det("e", "list").stdout.splitlines()[-1]
    assert usual.startswith("3 ")
    assert len(usual) < 500


def test_errors_of_the_service_are_harmless(det: Det, service: FakeService) -> None:
    service.experiments[1] = experiment()
    service.refusals[1] = f"experiment {LONG} cannot\nbe killed"
    result = det("e", "kill", 1)
    assert result.exit_code == 1
    harmless(result.output)
    assert "\\x1b]0;owned\\x07" in result.stderr
    assert max(map(len, result.stderr.splitlines())) < 5000
    harmless(det("-v", "e", "kill", 1).output)


@pytest.mark.parametrize("terminal", [False, True])
def test_colours_of_a_trials_log_stay_and_end_with_the_line(
    det: Det, service: FakeService, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(printing, "is_terminal", lambda out: terminal)
    service.trials[1] = [trial(3)]
    lines = [
        "\x1b[1;31mred",
        "\x1b[32mgreen\x1b[0m",
        "bar\r",
        "\x1b[2Jx\x1b]8;;http://e\x07\x1b[31m",
        "a\tb",
    ]
    service.logs[3] = [log_line(n, "", message=f"{line}\n") for n, line in enumerate(lines, 1)]
    assert det("t", "logs", 3).stdout.split("\n") == [
        "\x1b[1;31mred\x1b[0m",
        "\x1b[32mgreen\x1b[0m",
        "bar",
        "\\x1b[2Jx\\x1b]8;;http://e\\x07\x1b[31m\x1b[0m",
        "a\tb",
        "",
    ]
    shown = det("t", "logs", 3, "--json").stdout
    harmless(shown)
    assert [json.loads(line)["message"].rstrip("\n") for line in shown.splitlines()] == lines


def test_last_words_have_no_colours(det: Det, service: FakeService) -> None:
    service.experiments[1] = experiment(state="ERROR")
    service.trials[1] = [trial(3, "ERROR", reason="r")]
    message = f"\x1b[31mValueError\x1b[0m{EVIL}\n"
    service.logs[3] = [log_line(1, "", message=message, log=message)]
    shown = det("e", "describe", 1).stdout
    harmless(shown)
    assert "ValueError\\x1b]0;owned" in shown


def test_the_panel_is_harmless() -> None:
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    tracker = Tracker()
    bad = trial(1, "ERROR", 0.5, reason=LONG)
    bad["hparams"] = {EVIL: EVIL}
    events = tracker.update(experiment(name=LONG), [bad])
    with Panel(console) as panel:
        panel.show(tracker, events)
    text = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "")
    harmless(text)
    assert "owned" in text
    assert "\x1b]" not in out.getvalue()
    assert "\x1b[2J\\" not in out.getvalue()


def test_an_encoding_without_the_character_is_not_an_error() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    printing.echo("é \udc80 ok", file=out)
    assert raw.getvalue() == b"\\xe9 \\udc80 ok\n"


@pytest.mark.parametrize(
    ("natural", "available", "widths"),
    [
        ([3, 10], 80, [3, 10]),
        ([3, 500], 80, [3, 77]),
        ([3, 500, 90], 130, [3, 63, 63]),
        ([3, 500, 50], 130, [3, 77, 50]),
        ([36, 36, 36, 500], 80, [36, 36, 36, 40]),
        ([], 80, []),
    ],
)
def test_wide_columns_share_the_terminal(
    natural: list[int], available: int, widths: list[int]
) -> None:
    assert tables.fitted(natural, available) == widths


def test_cells_are_folded_at_spaces_and_cut() -> None:
    assert tables.fold("one two three", 8, 3) == ["one two", "three"]
    assert tables.fold("A" * 20, 8, 2) == ["AAAAAAAA", "AAAAAAA…"]
    assert tables.fold("", 8, 2) == [""]
    assert tables.fold("ab cdefghij kl", 9, 3) == ["ab", "cdefghij", "kl"]
    assert tables.fold('{"a":1,"b":2}', 8, 2) == ['{"a":1,', '"b":2}']
    # Two cells of the terminal each.
    assert tables.fold("日本語日本語", 8, 2) == ["日本語日", "本語"]
    assert tables.cell_width("日本") == 4
    # Marks without a width cannot make a cell endless.
    assert len("".join(tables.fold("a" + "\u0301" * 100_000, 8, 3))) <= 2000


def test_all_output_passes_one_module() -> None:
    """`print`, `typer.echo` and streams are used in `printing.py` only."""
    root = Path(determined.cli.__file__).parent
    allowed = {
        ("groups.py", "typer.echo"),  # help, which is ours
        ("root.py", "typer.echo"),
        ("following/live.py", "Console"),  # the panel, whose texts pass one_line()
    }
    found = set()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("print", "typer.echo", "typer.secho", "Console", "rich.print") or (
                re.fullmatch(r"(sys\.)?(out|stdout|stderr|file)\.write(lines)?", called)
            ):
                found.add((name, called))
    assert {one for one in found if one[0] != "printing.py"} <= allowed


def test_the_password_of_an_impossible_name(det: Det) -> None:
    done = det("user", "change-password", "x" * 100_000)
    assert done.exit_code == 1
    assert "100000 characters, and names have at most 1024" in " ".join(done.stderr.split())
