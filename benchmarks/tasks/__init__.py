"""Measures what people sit at: the proxy to tasks."""
