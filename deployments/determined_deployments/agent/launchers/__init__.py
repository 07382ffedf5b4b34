"""Launchers start the agent's jobs: :mod:`base` is the contract, each folder beside it an implementation.

This file is empty, because fork servers import only the modules that they need from here.
"""
