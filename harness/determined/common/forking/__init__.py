"""Interpreters that fork instead of being started again: when that is safe, and what a fork becomes."""
