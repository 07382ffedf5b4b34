"""Prints the data of commands: tables, JSON and CSV, formats of values, log lines, downloads.

Knows nothing about submitting or following.
"""
