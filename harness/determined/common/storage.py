"""Determined's storage managers live in another package here."""

raise ImportError(
    "determined.common.storage is not in this release: determined.storage has the storage managers, and "
    "core_context.checkpoint or Checkpoint.download() store and fetch checkpoints"
)
