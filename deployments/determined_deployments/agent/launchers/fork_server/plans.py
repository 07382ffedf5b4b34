"""The modules that every agent's zygotes import before any job is known."""

from __future__ import annotations

import os

WITHOUT_TORCH = "DETERMINED_AGENT_WITHOUT_TORCH"
"""Environment variable of an agent whose trials do not use torch: any text saves its import, 2 s of CPU at
each start and 200 MB. A trial that imports it all the same gets it as any other package."""

# Imported before trials are forked. Torch is not required.
TRIAL_MODULES = ["determined.core"]
TRIAL_OPTIONAL = [
    "numpy",
    "torch",
    "torch.nn",
    "torch.utils.data",
    "determined.storage.directory",
    "determined.storage.shared_fs",
    # Used by the first connection.
    "stringprep",
    "encodings.idna",
    # Used by the first report.
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer",
    "determined_deployments.agent.launchers.fork_server.warm_up:torch_optimizer",
]
FLOW = "flow"
FLOW_MODULES = [
    "determined.common.lean_jsonschema:import_it",
    "prefect.flow_engine",
    "prefect.engine",
    "determined_deployments.agent.flow_run",
]
FLOW_OPTIONAL = ["determined_flows.experiment"]


def trial_optional() -> list[str]:
    """:data:`TRIAL_OPTIONAL`, as the agent's environment wants it."""
    if not os.environ.get(WITHOUT_TORCH):
        return TRIAL_OPTIONAL
    return [entry for entry in TRIAL_OPTIONAL if "torch" not in entry]
