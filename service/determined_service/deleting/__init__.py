"""Deletions from checkpoint storage, and checkpoints that were found damaged there."""
