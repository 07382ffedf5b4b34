"""Tests if trials could save checkpoints in the storage of a cluster configuration."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from determined.common.cluster_config import ClusterConfig, stored
from determined.common.wire import storage

SECONDS = 30.0


def problem(config: ClusterConfig, seconds: float = SECONDS) -> str:
    """The reason why a test file cannot be written to the configured storage, read and deleted. Empty: it
    can, or no storage is configured, or only containers see it.

    It is tried as the agent's processes would: as this user, with this interpreter and environment.
    """
    section = config.checkpoint_storage
    if section is None:
        return ""
    given = stored(section)
    if given["type"] == "directory" and not Path(given["container_path"]).is_dir():
        return ""
    try:
        done = subprocess.run(
            storage.CHECK,
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return storage.late(seconds)
    if done.returncode == 0:
        return ""
    last = (done.stdout or done.stderr).strip().splitlines()
    return last[-1] if last else f"the check ended with exit code {done.returncode}"
