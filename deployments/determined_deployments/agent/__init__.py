"""The process agent: a Prefect worker that starts flow runs and training processes from a fork
server (docs/operate/agent.md)."""
