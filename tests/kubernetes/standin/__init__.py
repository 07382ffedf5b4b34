"""A small stand-in of Kubernetes (API, controllers, scheduler, kubelets) for tests without a cluster.

:mod:`running` starts it in a thread, ``python -m tests.kubernetes.standin`` in a process. Containers run as
processes of this machine, in mount and process namespaces, whatever image they name.
"""
