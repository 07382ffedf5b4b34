"""Every environment variable that the project reads or sets, and docs/reference/environment.md made of them.

``python -m determined.cli.variables`` prints the page. A test (tests/unit/cli/test_cli_variables.py) reads
the sources and fails for a variable that is missing here.
"""

from __future__ import annotations

from dataclasses import dataclass

from determined.cli.printing import echo


@dataclass(frozen=True)
class Variable:
    """``meaning``: in Markdown, without the variable's name."""

    name: str
    meaning: str


@dataclass(frozen=True)
class VariableGroup:
    """A section of the page. ``about``: who sets these variables, and for which programs."""

    title: str
    about: str
    variables: tuple[Variable, ...]


GROUPS = (
    VariableGroup(
        "For `det`, the SDK and your own programs",
        "You set these. What counts before what: [the command line](cli.md#logging-in).",
        (
            Variable(
                "DET_MASTER",
                "the service: `http://host:port`, `https://host`, or `host` alone for `http://host:8080`",
            ),
            Variable("DET_MASTER_ADDR", "the same, for scripts that set it; `DET_MASTER` wins"),
            Variable(
                "DET_USER", "the user to log in as; without `DET_PASS` a name to be asked for"
            ),
            Variable("DET_PASS", "the password of `DET_USER`; what it logs in is not stored"),
            Variable("DET_USER_TOKEN", "a token of a login, in place of user and password"),
            Variable(
                "DET_MASTER_CERT_FILE",
                "a PEM file with the certificates to trust in place of the system's, or `noverify`",
            ),
            Variable(
                "DET_MASTER_CERT_NAME", "the name in the certificate, where the address has another"
            ),
            Variable(
                "DET_DATA_DIR",
                "the folder of the local cluster; agents that are started by hand keep theirs below it."
                " Default: the platform's user data directory (`~/.local/share/determined`)",
            ),
            Variable(
                "DET_DEBUG_CONFIG_PATH",
                "the folder of the stored logins (`auth.json`). Default: `~/.config/determined`",
            ),
            Variable(
                "DET_DEBUG",
                "anything but nothing: `det` shows the traceback of an error, as `-v` does",
            ),
            Variable(
                "PREFECT_API_URL",
                "Prefect's API, for flows of your own and for agents; `det prefect env` prints the local"
                " cluster's",
            ),
            Variable("PREFECT_API_AUTH_STRING", "`user:password` of Prefect's API, for the same"),
            Variable(
                "MLFLOW_TRACKING_URI",
                "`<service>/mlflow`, for scripts that know only [MLflow](../look/mlflow.md); tasks have it",
            ),
            Variable(
                "MLFLOW_TRACKING_TOKEN", "a token, for the same (`det dev auth-token` prints one)"
            ),
        ),
    ),
    VariableGroup(
        "For the service and agents",
        "Who operates a cluster sets these ([several machines](../operate/production.md)). A local cluster"
        " sets them itself.",
        (
            Variable(
                "DET_SERVICE_CONFIG",
                "the [settings file](settings.md) of `det deploy service` and `det deploy prefect`",
            ),
            Variable(
                "FORWARDED_ALLOW_IPS",
                "the addresses of reverse proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` the service"
                " believes, instead of `trusted_proxies` of its [settings](settings.md)",
            ),
            Variable(
                "DET_AGENT_CONFIG",
                "the [settings file](../operate/agent.md) of `python -m determined_deployments.agent`;"
                " `det agent start` writes one and sets it",
            ),
            Variable(
                "DET_AGENT_TOKEN",
                "the service's `agent_token`, for `det agent start`",
            ),
            Variable(
                "DET_RUN_TOKEN",
                "the agent, or the service, sets it for a Prefect run of this project's flows: a token for"
                " [what the run serves](../operate/security.md#what-supervisors-and-runs-may)",
            ),
            Variable(
                "DET_MACHINE",
                "the node of a pod, which Kubernetes tells its supervisor: `exclude_node` of a log policy"
                " goes by it",
            ),
            Variable(
                "DET_START_ID",
                "a pod's unique id, which Kubernetes tells its supervisor: a second pod of the same task"
                " is refused ([pods](../operate/pods.md))",
            ),
            Variable(
                "DETERMINED_AGENT_WITHOUT_TORCH",
                "`1`: the agent imports no torch beforehand ([agents](../operate/agent.md))",
            ),
            Variable(
                "DO_NOT_TRACK",
                "`true` in each process of a cluster and in each task: Prefect and MLflow report to nobody"
                " how they are used. Another value of `environment_variables` wins",
            ),
            Variable(
                "PREFECT_HOME",
                "Prefect's folder, which holds nothing of yours. An agent takes `prefect` in its directory"
                " unless it is set",
            ),
            Variable("MLFLOW_DISABLE_TELEMETRY", "the same, `true`"),
            Variable("PREFECT_SERVER_ANALYTICS_ENABLED", "the same, `false`"),
        ),
    ),
    VariableGroup(
        "In every task",
        "The agent sets these for trials, commands, notebooks, shells and TensorBoards. Programs should ask"
        " `determined.get_cluster_info()`, which has the same and is typed.",
        (
            Variable("DET_MASTER", "the service's address, as this machine reaches it"),
            Variable("DET_MASTER_HOST", "its host"),
            Variable("DET_MASTER_ADDR", "the same"),
            Variable("DET_MASTER_PORT", "its port"),
            Variable("DET_USE_TLS", "`true` if the address begins with `https`, else `false`"),
            Variable("DET_CLUSTER_ID", "the cluster's id"),
            Variable("DET_AGENT_ID", "the agent's name"),
            Variable("DET_TASK_ID", "the task's id; of a trial, that of its present task"),
            Variable(
                "DET_TASK_TYPE",
                "`TRIAL`, `COMMAND`, `NOTEBOOK`, `SHELL`, `TENSORBOARD`, `GENERIC` …",
            ),
            Variable(
                "DET_ALLOCATION_ID", "this run of the task: a new one after each pause or restart"
            ),
            Variable(
                "DET_RESOURCES_ID", "`<allocation>.<node>`: this node's part of the allocation"
            ),
            Variable("DET_RESOURCES_TYPE", "`process` or `docker-container`"),
            Variable("DET_CONTAINER_ID", "the same as `DET_RESOURCES_ID`"),
            Variable("DET_SLOT_IDS", "the numbers of the slots on this agent, a JSON list"),
            Variable(
                "DET_SESSION_TOKEN",
                "the task's own token, and [what it may](../operate/security.md#what-a-training-process-may)",
            ),
            Variable("DET_USER", "the name of the task's owner"),
            Variable("DET_WORKDIR", "the directory with the task's files"),
            Variable(
                "DET_RUN_DIR",
                "a private directory of the platform's for this run; info files are in `info/`",
            ),
            Variable(
                "DET_TASK_LOGGING_METADATA",
                "task and allocation, JSON, for Determined's own harness",
            ),
            Variable(
                "DET_LISTEN_HOST",
                "where a server must listen to be reached [through the service](../sit-down/proxy.md); set"
                " where the task has ports",
            ),
        ),
    ),
    VariableGroup(
        "In trials",
        "The agent sets these besides. A value above 100 KB is left out; the info files have it.",
        (
            Variable("DET_EXPERIMENT_ID", "the experiment"),
            Variable("DET_TRIAL_ID", "the trial"),
            Variable("DET_TRIAL_RUN_ID", "how often the trial has been started"),
            Variable("DET_TRIAL_SEED", "the seed for the trial's random generators"),
            Variable("DET_EXPERIMENT_CONFIG", "the experiment's configuration, JSON"),
            Variable("DET_HPARAMS", "the trial's hyperparameters, JSON"),
            Variable(
                "DET_STEPS_COMPLETED", "the steps of the checkpoint to go on from; 0 without one"
            ),
            Variable("DET_LATEST_CHECKPOINT", "that checkpoint's UUID, if there is one"),
            Variable(
                "MLFLOW_RUN_ID",
                "the trial's run in MLflow, with the two `MLFLOW_TRACKING_…` above; set where the service has"
                " MLflow",
            ),
        ),
    ),
    VariableGroup(
        "In trials of several processes",
        "[Launchers](../train/distributed.md) set these beside those of torchrun (`RANK`, `WORLD_SIZE` …),"
        " which the Core API reads, as it does Horovod's.",
        (
            Variable("DET_CHIEF_IP", "the address of the first machine"),
            Variable("USE_TORCH_DISTRIBUTED", "`True` under `determined.launch.torch_distributed`"),
            Variable("USE_DEEPSPEED", "`1` under `determined.launch.deepspeed`"),
            Variable("USE_HOROVOD", "`1` under `determined.launch.horovod`"),
            Variable(
                "DET_INTER_NODE_NETWORK_INTERFACE",
                "you set it, in `environment_variables`: the network interface by which machines find each"
                " other",
            ),
            Variable(
                "DET_MANUAL_INIT_DISTRIBUTED",
                "you set it: DeepSpeed's process group is made by your own code",
            ),
            Variable("DTRAIN_SSH_PORT", "you set it: the port of ssh for `horovodrun`"),
        ),
    ),
    VariableGroup(
        "Inside the platform",
        "Processes of the platform tell these to each other. Do not set them.",
        (
            Variable("DETERMINED_LOCAL_CLUSTER", "the local cluster to which a process belongs"),
            Variable("DETERMINED_LOCAL_COMPONENT", "the component of it"),
            Variable("DET_WORK_DIR", "the agent's directory, for flow runs"),
            Variable("DET_NOTEBOOK_TOKEN", "the secret of a JupyterLab; its launcher takes it out"),
            Variable(
                "DET_NOTEBOOK_IDLE_TYPE", "`notebook_idle_type` of a notebook's configuration"
            ),
            Variable("NOTEBOOK_PORT", "the port at which JupyterLab listens"),
            Variable("TENSORBOARD_PORT", "the port at which TensorBoard listens"),
            Variable("DET_SHELL_SSH_PORT", "a shell's ports, key and the hash of its secret"),
            Variable("DET_SHELL_TERMINAL_PORT", "the same"),
            Variable("DET_SHELL_PUBLIC_KEY", "the same"),
            Variable("DET_SHELL_SECRET_HASH", "the same"),
            Variable(
                "DET_DOOR_HELLO",
                "what `det exec` and `det trial dump` run beside a task, and where",
            ),
            Variable("DET_DOOR_WORK_DIR", "the same"),
            Variable("DET_DOOR_RUN_DIR", "the same"),
            Variable("DET_DOOR_SUPERVISOR", "the same"),
            Variable("DET_DOOR_MAIN", "the same"),
        ),
    ),
)

HEAD = """# Environment variables

After this page you know each variable that this project reads or sets. It is written by `make docs` from the
table in `harness/determined/cli/variables.py`.
"""


def page() -> str:
    """The whole page, in Markdown."""
    parts = [HEAD]
    for group in GROUPS:
        parts.append(f"\n## {group.title}\n\n{group.about}\n\n| variable | |\n|---|---|\n")
        parts += [f"| `{each.name}` | {each.meaning} |\n" for each in group.variables]
    return "".join(parts)


if __name__ == "__main__":
    echo(page(), end="")
