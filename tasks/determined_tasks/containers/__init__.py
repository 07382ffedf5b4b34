"""Legs whose training process runs in a container of a Docker engine (docs/operate/agent.md)."""
