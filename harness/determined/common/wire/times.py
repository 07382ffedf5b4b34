"""Seconds that both sides of the wire must agree on."""

from __future__ import annotations

HEARTBEAT_S = 5.0
"""Seconds between an agent's signs of life: its request for work waits at most this long for an answer.
"""
DRIVER_POLL_S = 10.0
"""The same for the flow that drives a search and its request for events."""
UNMANAGED_HEARTBEAT_S = 60.0
"""Seconds between the signs of life of an unmanaged trial's script."""
