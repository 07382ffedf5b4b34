"""Legs as Jobs of a Kubernetes cluster (docs/operate/kubernetes.md)."""
