"""The process agent: a Prefect worker that starts flow runs and training processes from a fork
server (docs/inside/agent.md)."""
