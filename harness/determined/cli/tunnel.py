"""``python -m determined.cli.tunnel MASTER TASK[:PORT] [--listen PORT]``: a port of a task, on this machine.

Without ``--listen`` the bytes are those of standard input and output, as ``ssh -o ProxyCommand`` wants them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from determined.cli.printing import talk
from determined.common import tunnel
from determined.common.api import authentication, errors
from determined.common.api.session import Session


def find_key(session: Session, task: str) -> str:
    """``TASK[:PORT]`` as the proxy's addresses have it; a number is a trial's."""
    name, colon, port = task.partition(":")
    if name.isdecimal():
        name = str(session.get(f"/api/v1/trials/{name}")["trial"]["taskId"])
    return f"{name}{colon}{port}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m determined.cli.tunnel", description=__doc__)
    parser.add_argument("master", help="the service's address")
    parser.add_argument(
        "task", help="a task's id or a trial's number, with :PORT unless it is the default port"
    )
    parser.add_argument(
        "--listen",
        type=int,
        metavar="PORT",
        help="serve this port of this machine (0: any free one)",
    )
    # Determined's name for the same.
    parser.add_argument("--listener", type=int, dest="listen", help=argparse.SUPPRESS)
    parser.add_argument("-u", "--user", help="as whom, if not as you are logged in")
    given = parser.parse_args(arguments)
    try:
        with authentication.connect(given.master, given.user) as session:
            key = find_key(session, given.task)
            url, token = session.master, session.token

            def opened() -> tunnel.Tunnel:
                return tunnel.connect(url, token, key)

            if given.listen is None:
                return _pipe(opened(), key)
            # What is wrong is said now, and not to the first connection.
            opened().close()
            listener = tunnel.Listener(given.listen, opened, lambda error: talk(str(error)))
            talk(f"port {listener.port} of this machine is {key}; Ctrl-C ends it")
            listener.serve()
    except (errors.APIException, ValueError, OSError) as error:
        talk(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _pipe(opened: tunnel.Tunnel, key: str) -> int:
    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    tunnel.join(opened, lambda: os.read(sys.stdin.fileno(), tunnel.PIECE), write)
    if not opened.is_cut:
        return 0
    talk(
        f"the connection to {key} was cut off: the service has ended, the task has, or the network is gone"
    )
    return 1


if __name__ == "__main__":
    # Not sys.exit: a thread may wait for standard input.
    code = main()
    sys.stdout.flush()
    os._exit(code)
