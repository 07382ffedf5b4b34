"""Not in this release: the autotuner of DeepSpeed's settings."""

raise ImportError(
    "determined.pytorch.dsat is not in this release: search over DeepSpeed's settings as "
    "hyperparameters, with any searcher"
)
