"""Rows to the JSON that Determined's clients read."""
