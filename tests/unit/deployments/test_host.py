"""What an agent calls its host: two pods on one node's network are two."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from determined_deployments.agent.host import host_name

UID = "0c7b2ad4-7f0f-4c1e-9d0a-3f8f0d6c9a11"
ROOT = "606 605 0:55 / / rw,relatime - overlay overlay rw\n"


@pytest.mark.parametrize("folder", ["/var/lib/kubelet/pods", "/pods"], ids=["root", "own disk"])
def test_in_a_pod_it_has_the_pods_uid(tmp_path: Path, folder: str) -> None:
    mounts = tmp_path / "mountinfo"
    line = f"613 606 254:0 {folder}/{UID}/etc-hosts /etc/hosts rw,relatime - ext4 /dev/vda rw\n"
    mounts.write_text(ROOT + line)
    assert host_name(mounts) == f"{socket.gethostname()}/{UID}"


def test_elsewhere_it_is_the_hosts_name(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    docker = "613 606 254:0 /var/lib/docker/containers/c/hosts /etc/hosts rw - ext4 /dev/vda rw\n"
    mounts.write_text(ROOT + docker)
    assert host_name(mounts) == host_name(tmp_path / "missing") == socket.gethostname()
