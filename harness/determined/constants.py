"""Names and numbers shared with users' scripts and launch layers."""

from __future__ import annotations

# Where agents that run containers mount a shared_fs host_path.
SHARED_FS_CONTAINER_PATH = "/determined_shared_fs"

# Default directory of a task's info files; DET_RUN_DIR moves it.
DEFAULT_RUN_DIR = "/run/determined"

INTER_TRAIN_PROCESS_COMM_PORT_1 = 12360
INTER_TRAIN_PROCESS_COMM_PORT_2 = INTER_TRAIN_PROCESS_COMM_PORT_1 + 16

# Where launch layers tell the processes of one trial the port that is theirs alone.
COMM_PORT_VARIABLE = "INTER_TRAIN_PROCESS_COMM_PORT_1"
