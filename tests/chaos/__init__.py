"""Processes die, stop and lose each other while searches run; nothing may be lost."""
