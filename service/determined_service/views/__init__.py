"""Turns rows into the JSON that Determined's clients read."""
