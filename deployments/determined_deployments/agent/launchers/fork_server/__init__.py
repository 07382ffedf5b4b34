"""Jobs as forks of interpreters that have done their imports (docs/inside/agent.md)."""
