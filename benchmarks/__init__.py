"""Measures the platform and prints figures; nothing here asserts a time."""
