"""Runs a program while it holds a lock: ``install_lock.py FILE PROGRAM ARGUMENT …``.

Trials of one experiment install into one directory, and two pips at once would leave a mixture of both. A
separate program, without any import of ours: it runs under tasks' accounts, in front of each pip that
installs. The kernel ends the lock with the program, however that ends; what the program starts does not
inherit it, because Python closes descriptors that it does not know.
"""

from __future__ import annotations

import fcntl
import os
import sys

WAITING = "waits until another trial of the experiment on this machine has installed its packages"


def main(path: str, argv: list[str]) -> None:
    """Never returns."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(WAITING, file=sys.stderr, flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.set_inheritable(descriptor, True)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
