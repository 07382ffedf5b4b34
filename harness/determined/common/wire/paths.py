"""Addresses under ``/internal/v1``: templates for the service's routes, to which clients apply
``.format(…)``.
"""

from __future__ import annotations

PREFIX = "/internal/v1"

REGISTER = f"{PREFIX}/agents/{{agent_id}}/register"
WORK = f"{PREFIX}/agents/{{agent_id}}/work"
AGENT_STATE = f"{PREFIX}/agents/{{agent_id}}/state"
SIGN_OFF = f"{PREFIX}/agents/{{agent_id}}/sign-off"
CLAIM = f"{PREFIX}/trials/{{trial_id}}/claim"

STARTING = f"{PREFIX}/allocations/{{allocation_id}}/starting"
NOTICE = f"{PREFIX}/allocations/{{allocation_id}}/notice"
RUNNING = f"{PREFIX}/allocations/{{allocation_id}}/running"
PORT = f"{PREFIX}/allocations/{{allocation_id}}/port"
EXIT = f"{PREFIX}/allocations/{{allocation_id}}/exit"
DOOR = f"{PREFIX}/allocations/{{allocation_id}}/door"
DOOR_ORDER = f"{PREFIX}/allocations/{{allocation_id}}/doors/{{node}}"
TASK_FILES = f"{PREFIX}/allocations/{{allocation_id}}/files"
TASK_FILE_PIECE = f"{TASK_FILES}/{{number}}"
LOGS = f"{PREFIX}/logs"
MODEL_DEFINITION = f"{PREFIX}/model_defs/{{hash}}"
DAMAGED_CHECKPOINT = f"{PREFIX}/trials/{{trial_id}}/damaged_checkpoint"

SEARCH = f"{PREFIX}/experiments/{{experiment_id}}/search"
ATTACH = f"{SEARCH}/attach"
EVENTS = f"{SEARCH}/events"
FOLLOW = f"{SEARCH}/follow"
COMMIT = f"{SEARCH}/commit"
FAIL = f"{SEARCH}/fail"
TRIAL_RUN = f"{PREFIX}/trials/{{trial_id}}/run"

DELETION = f"{PREFIX}/deletions/{{deletion_id}}"
DELETED = f"{DELETION}/deleted"
DELETION_END = f"{DELETION}/end"
RETRAINING_RUNS = f"{PREFIX}/retraining-runs"
ADVANCE_RETRAINING = f"{RETRAINING_RUNS}/{{run_id}}/advance"
PIPELINES = f"{PREFIX}/pipelines"
ADVANCE_PIPELINE = f"{PIPELINES}/{{pipeline_id}}/advance"
CLUSTER_CONFIG = f"{PREFIX}/cluster-config"
KNOWN_CHECKPOINTS = f"{PREFIX}/checkpoints/known"

RUN_COOKIE = "determined-run"
"""The header in which the process of an unmanaged trial names its run: ``<trial>.<run>``. It gives no
rights; a run that is over loses its rights by it.
"""
