"""The name by which the service tells two agents of one name apart."""

from __future__ import annotations

import re
import socket
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
_HOSTS_OF_POD = re.compile(r"/pods/([0-9a-f-]{36})/etc-hosts /etc/hosts ")
"""Every kubelet mounts this file of the pod's, also where the pod has its node's network."""


def host_name(mounts: Path = MOUNTS) -> str:
    """The host's name; in a pod of Kubernetes with the pod's uid after a slash.

    Pods with their node's network share its name, and would register in turns: an agent that starts on the
    host of another one is taken for its successor. A container that starts again in its pod is one.
    """
    name = socket.gethostname()
    try:
        found = _HOSTS_OF_POD.search(mounts.read_text(errors="replace"))
    except OSError:
        return name
    return name if found is None else f"{name}/{found[1]}"
