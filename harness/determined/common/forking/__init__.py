"""Forking an interpreter instead of starting a new one: when that is safe, and how a fork becomes a
program.
"""
