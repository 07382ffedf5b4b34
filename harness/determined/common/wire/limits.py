"""The most that the service takes: every limit on input, also in a table of docs/operate/limits.md.

Constants only: the service, `determined.expconf` (so `det` too) and training processes import them. What is
larger is refused, with its path, what was found and what is allowed; nothing is cut and nothing of it is
stored.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# Bytes of a request's body.
BODY_BYTES = MIB
"""Of every request that is not named here."""
FILES_BYTES = 95 * MIB
"""All files of a model definition together, before they are compressed."""
SUBMISSION_BYTES = 136 * MIB
"""A submission: the files in base64, the configuration, and the paths."""
METRICS_BYTES = 8 * MIB
"""A batch of metric reports. The harness sends half a MiB at once, unless one report is larger."""
LOGS_BYTES = 64 * MIB
"""A batch of log lines, which may be a MiB each."""
CHECKPOINT_BYTES = 16 * MIB
"""A report of a checkpoint, with the names, sizes and checksums of its files."""
MLFLOW_FILE_BYTES = 5 * 1024 * MIB
"""A file that an MLflow client logs; it goes from the socket to the disk."""
MLFLOW_PAGE_FILE_BYTES = 10 * MIB
"""A file that MLflow's pages upload, which its server holds in memory; it takes no larger ones."""

# Requests and answers.
REQUESTS_AT_ONCE = 512
"""Requests of one user that are under way, long polls included."""
ANSWER_PIECE_BYTES = MIB
"""A long answer is read, made and sent in pieces of about this size."""
ANSWERS_BYTES = 32 * MIB
"""Pieces of all answers that are being made and sent, as Postgres has them."""
ANSWERS_OF_ONE_BYTES = 8 * MIB
"""Of one user's."""

# Addresses.
QUERY_PARAMETERS = 5_000
PATTERN_CHARS = 1_000
"""A text, or regular expression, that is searched for in logs; a log policy's pattern."""
USAGE_DAYS = 366
"""Days of accounting that one request may ask for."""
USAGE_MONTHS = 120
"""Of sums by month."""
USAGE_ENTRIES = 100_000
"""Allocations in one JSON answer; CSV has no limit."""
SEARCH_S = 10.0
"""Seconds that one look-up in a log with a regular expression may take."""

POLICY_S = 2.0
"""Seconds of processor time that a log policy's pattern may take for a piece of a log."""

# The shape of JSON and YAML.
DEPTH = 64
"""Lists and objects inside each other."""
VALUES = 100_000
"""Values in one body: numbers, texts, lists, objects."""
CONTAINERS = 20_000
"""Lists and objects in one body."""
LARGE_VALUES = 1_000_000
LARGE_CONTAINERS = 50_000
"""Of metrics, logs, checkpoints, and what agents send."""

# Numbers. Where the database or the format has a narrower range, that one counts.
INT32 = 2**31 - 1
INT64 = 2**63 - 1
YEARS = (1900, 2999)
"""Of times that are sent."""
REPORT_YEARS = (1900, 9998)
"""Of a report's time: MLflow's clients log any number as one. Later years are not dates in Python, or not in
every time zone."""

# Texts, in characters.
NAME_CHARS = 1_024
"""Names of experiments, users, labels, metrics' groups; ids that a client makes up."""
TEXT_CHARS = 65_536
"""Descriptions, reasons, addresses: what a list or a line shows."""
POOL_NAME_CHARS = 200
"""A resource pool's name, which is also that of a work pool in Prefect."""
NOTES_CHARS = 500_000
"""The notes of an experiment."""
LABELS = 200
"""Labels of one experiment."""
KEY_CHARS = 200
"""The idempotency key of a submission: it is in an index of the database."""
PASSWORD_CHARS = 4_096
MANY_IDS = 10_000
"""Ids in one request that acts on many things."""

# Experiment configurations.
CONFIG_BYTES = MIB
CONFIG_VALUES = 20_000
"""Values after aliases have been followed."""
CONFIG_PROBLEMS = 100
"""Problems that one refusal of a configuration lists."""
LOG_POLICIES = 64
POOLS = 1_000
"""Resource pools of a cluster."""
FALLBACK_POOLS = 16
"""Pools that one falls back to."""
AGENT_LABELS = 64
"""Labels of one agent, labels that a configuration asks for, and values that it allows for one."""
AGENT_LABEL_CHARS = 128
"""A label's key, and its value."""
PLACEMENT_AGENTS = 1_000
"""Agents that a configuration names."""
TRIALS_AT_ONCE = 10_000
"""Trials that a search may create at its start."""
POINTS_BYTES = 32 * MIB
"""Those trials times the hyperparameters of the configuration, as JSON."""

# Model definitions.
FILES = 50_000
PATH_CHARS = 4_096
PATH_PART_BYTES = 255
"""One name in the path of an artifact of MLflow's, in UTF-8: file systems take no longer ones."""

# Metrics.
METRIC_NAME_BYTES = 1_024
"""A metric's name, and that of its group, in UTF-8: both are in an index of the database."""
METRIC_NAMES = 10_000
"""Different names of metrics that one trial may report, counted in each group: each has a summary."""
METRIC_GROUPS = 1_000
"""Different groups of metrics of one trial."""
METRIC_VALUE_BYTES = 64 * KIB
"""One value that is not a number, as JSON."""
METRICS_OF_REPORT_BYTES = MIB
"""The metrics of one report, as JSON (its batch metrics are bounded by the body alone)."""

POINTS_OF_CURVE = 10_000
"""Points of a trial's curve in one answer."""
GROUPS_OF_CURVES = 20
"""Groups of metrics of which one answer has curves."""

# Checkpoints and trials.
CHECKPOINT_FILES = 100_000
"""Files of one checkpoint."""
UUID_BEGINNING_DIGITS = 4
"""The least hexadecimal digits of a UUID that stand for all of it."""
METADATA_BYTES = MIB
"""The metadata of a checkpoint or a trial, and a trial's hyperparameters, as JSON."""

# Users and groups of them.
GROUP_NAME_CHARS = 250
PASSWORD_MIN_CHARS = 8
"""Of a new password, where other machines reach the service."""
USER_SETTINGS = 1_000
"""Settings that programs keep for one user."""

USER_DEFAULTS_BYTES = 64 * 1024
"""Of the values that one user's configurations take, as JSON."""

# Templates.
TEMPLATE_NAME_CHARS = 250
TEMPLATES = 1_000
"""Templates of one user."""

# Configuration policies.
POLICY_BYTES = 64 * 1024
"""Of one policy; the service keeps them all in memory."""

# Workspaces and projects.
WORKSPACE_NAME_CHARS = 80
CLUSTER_MESSAGE_CHARS = 500
"""`det` shows the message at every command."""
"""Of projects, too."""
WORKSPACES = 1_000
"""Workspaces of one user."""
PROJECTS = 10_000
"""Projects of one workspace."""
PROJECT_NOTES = 100
"""Notes of one project; together they may have as many characters as an experiment's."""

# Models.
MODEL_NAME_CHARS = 250
ALIAS_CHARS = 250
TAGS = 1_000
"""Tags of a model or of a version; together they may have as many bytes as metadata."""
TAG_KEY_CHARS = 250
REPORTS_OF_USES = 20_000
"""Reports of the trials that use a version, in one answer."""

# Pipelines of experiments.
PIPELINE_STEPS = 64
PIPELINE_ITEMS = 100
"""Experiments of one step: items of its ``for_each``."""
PIPELINE_EXPERIMENTS = 1_000
"""Of all steps together, as far as their items are known."""
PIPELINE_BYTES = MIB
"""A pipeline as JSON, with the configurations of its steps and without their files."""
