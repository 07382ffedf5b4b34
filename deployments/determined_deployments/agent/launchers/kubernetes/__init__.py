"""Legs as Jobs of a Kubernetes cluster (docs/operate/pods.md)."""
