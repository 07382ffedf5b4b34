"""Not in this release: processes of a trial talk to each other by ``core.DistributedContext``."""

raise ImportError(
    "determined.ipc is not in this release: use determined.core.DistributedContext, whose gather(), "
    "allgather() and broadcast() connect the processes of a trial"
)
