"""Commands and options of Determined that are not here, and what to use.

What exists is found before these tables are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Tree: TypeAlias = "Mapping[str, str | Tree]"
"""Names (``"list|ls"``) to the advice, or to the names below."""


def _all(names: str, advice: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), advice)


_RETENTION = "logs are kept until the experiment is deleted (det e delete ID)"
_SSO = "log in with name and password: det user login NAME"
_NAMESPACES = (
    "an agent on Kubernetes has one namespace, with the quota that is set there; det resource-pool bindings "
    "add POOL WORKSPACE gives its pool to one workspace"
)
_MASTER_CONFIG = "change the file, and run det deploy local cluster-up --config FILE"
_CLOUD = "start the cluster on the machine itself: det deploy local cluster-up"
_PARTS = "det deploy local cluster-up starts the whole cluster, cluster-down stops it, status shows its parts"
_REST = 'send the request with curl: curl -H "Authorization: Bearer $(det dev auth-token)" ADDRESS'


TREE: Tree = {
    "experiment|e": {
        "set": {
            "log-retention": _RETENTION,
        },
    },
    "trial|t": {"set": {"log-retention": _RETENTION}},
    "task": _all("cleanup-logs", _RETENTION),
    "auth": _all("list-providers login", _SSO),
    "oauth": {"client": _all("add list|ls remove", _SSO)},
    "workspace|w": {
        "bindings": _all("delete list|ls set", _NAMESPACES),
        "resource-quota": {"set": _NAMESPACES},
    },
    "master": {
        "config": _all("set", _MASTER_CONFIG),
    },
    "dev": {
        **_all("curl|c", _REST),
        "bindings|b": _all("call|c list|ls", _REST),
    },
    "deploy|d": {
        "local": _all("master-up master-down agent-up agent-down", _PARTS),
        "aws": _all("up down list dump-master-config-template", _CLOUD),
        "gcp": _all("up down list dump-master-config-template", _CLOUD),
        "gke-experimental": _all("up down", _CLOUD),
    },
}

_LISTED = "det a list --json, or --csv, shows the agents as they are then"
_CONTAINERS = "the parts of a cluster are processes here, of the installed version; leave it out"
_AT_ONCE = "cluster-up waits until the cluster answers, and says what is wrong; leave it out"

#: Of commands that are here (and groups): the option, and what to do.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "agent disable": dict.fromkeys(("--json", "--csv"), _LISTED),
    "experiment create": dict.fromkeys(
        ("-g", "--git"), "write the commit into the labels: --config labels=[COMMIT]"
    ),
    "workspace create": dict.fromkeys(
        (
            *("--cluster-name", "-n", "--namespace", "--auto-create-namespace"),
            *("--auto-create-namespace-all-clusters", "--resource-quota"),
        ),
        _NAMESPACES,
    ),
    "shell start": {
        "--passphrase": "its key is made for this one shell and kept by det, so none is asked for"
    },
    "deploy": {
        "--no-preflight-checks": _AT_ONCE,
        "--no-wait-for-master": _AT_ONCE,
        "--image-repo-prefix": _CONTAINERS,
    },
    "deploy local cluster-up": {
        "--storage-host-path": "checkpoints lie below the cluster's folder (--data-dir); another place is "
        "checkpoint_storage in the file of --config",
        "--det-version": _CONTAINERS,
        "--db-password": "a local cluster makes its own; --db-url names another Postgres server",
        "--delete-db": "det deploy local cluster-down --delete-db does it, before cluster-up",
        "--no-autorestart": "what ends is started again until det deploy local cluster-down; leave it out",
        "--auto-work-dir": "tasks are sent files with -c DIR; a process agent's tasks see the machine's own",
        "--enterprise-edition": "there is one edition; leave it out",
    },
}


def option(command: str, name: str) -> str | None:
    """What to do without an option of Determined's; None: there is none of that name."""
    return OPTIONS.get(command, {}).get(name)


def names(path: Sequence[str]) -> list[str]:
    """The absent names directly below the group ``path``, with their aliases."""
    node: str | Tree = TREE
    for word in path:
        if isinstance(node, str):
            return []
        node = next((inner for name, inner in node.items() if word in name.split("|")), {})
    return [] if isinstance(node, str) else list(node)


def find(words: Sequence[str], known: int = 0) -> tuple[str, str] | None:
    """The full name of the absent command that ``words`` begin with, and the advice.

    The first ``known`` words name groups that exist. If the words end at a group, or its command is
    unknown, the advice is that of the group's first command. None if the word after the known ones is not
    in the table.
    """
    node: str | Tree = TREE
    path: list[str] = []
    for word in words:
        if isinstance(node, str):
            break
        name = next((name for name in node if word in name.split("|")), None)
        if name is None:
            break
        path.append(name.split("|")[0])
        node = node[name]
    if len(path) <= known:
        return None
    while not isinstance(node, str):
        node = next(iter(node.values()))
    return " ".join(path), node
