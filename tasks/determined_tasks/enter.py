"""``python -I -m determined_tasks.enter FD``: becomes a program under a leg's limits and account.

For programs that a process with threads starts: between its fork and the program no Python code may run. The
order is JSON at the descriptor: the program's environment is the user's, and this interpreter may be root.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from determined_tasks import limits, mounts
from determined_tasks.leg_groups import LegGroup
from determined_tasks.limits import Limits

MODULE = "determined_tasks.enter"


def order(
    argv: Sequence[str],
    env: Mapping[str, str],
    given: Limits,
    group: LegGroup,
    ids: Sequence[object],
    folder: Path,
    beside: int | None,
) -> int:
    """A descriptor for the interpreter to inherit. ``ids``: uid, gid and groups; empty: they stay.
    ``folder``: the working directory. ``beside``: the process whose mounts the program sees, if it has any.
    """
    content = {
        "argv": list(argv),
        "env": dict(env),
        "limits": vars(given),
        "group": [str(folder) for folder in group.folders],
        "ids": list(ids),
        "folder": str(folder),
        "beside": beside,
    }
    descriptor = os.memfd_create("order")
    with os.fdopen(os.dup(descriptor), "w") as file:
        json.dump(content, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def main(descriptor: int) -> None:
    with os.fdopen(descriptor) as file:
        given = json.load(file)
    LegGroup([Path(folder) for folder in given["group"]]).enter()
    ids = given["ids"]
    limits.restrict(Limits.from_json(given["limits"]), ids[0] if ids else os.getuid())
    if given["beside"] is not None:
        mounts.join(given["beside"])
    # From here on the task's user controls what paths mean: nothing is imported.
    if ids:
        uid, gid, groups = ids
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    os.chdir(given["folder"])
    os.execve(given["argv"][0], given["argv"], given["env"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
