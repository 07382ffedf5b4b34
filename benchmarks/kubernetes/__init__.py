"""Benchmarks of agents on Kubernetes: on the cluster of KUBECONFIG, or with the tests' stand-in."""
