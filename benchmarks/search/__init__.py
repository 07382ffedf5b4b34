"""Benchmarks of the searchers."""
