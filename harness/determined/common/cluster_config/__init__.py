"""The configuration of a cluster: its resource pools, their schedulers, and defaults for what runs on them.

The models are those of Determined's ``master.yaml``, as far as a cluster here has the same; fields that it
does not use are accepted with a remark, or refused where ignoring them would mislead.
docs/operate/cluster-config.md lists all of them. The service and `det` read the same file::

    config, remarks = read_file("cluster.yaml")
    config.scheduler_of("default").type

All mistakes are raised as one :class:`determined.expconf.ConfigError`.
"""

from determined.common.cluster_config.config import ClusterConfig, NotebookFiles, Security, Tokens
from determined.common.cluster_config.containers import TaskContainerDefaults
from determined.common.cluster_config.masking import masked
from determined.common.cluster_config.pool import DEFAULT_POOL, PoolConfig, ResourceManager
from determined.common.cluster_config.quotas import Quotas
from determined.common.cluster_config.reading import (
    Remark,
    read_file,
    read_text,
    restored,
    stored,
)
from determined.common.cluster_config.scheduler import DEFAULT_PRIORITY, SchedulerConfig

__all__ = [
    "DEFAULT_POOL",
    "DEFAULT_PRIORITY",
    "ClusterConfig",
    "NotebookFiles",
    "PoolConfig",
    "Quotas",
    "Remark",
    "ResourceManager",
    "SchedulerConfig",
    "Security",
    "TaskContainerDefaults",
    "Tokens",
    "masked",
    "read_file",
    "read_text",
    "restored",
    "stored",
]
