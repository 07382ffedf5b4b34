"""MLflow's stores over our own tables: what MLflow's pages and clients show is read where it stands.

Nothing is copied. Reads are SQL over the tables of :mod:`determined_registry.database`, in sessions that
Postgres keeps read-only; every change is a request to the service, in the user's name
(:mod:`~determined_registry.mlflow.service`), so that its rules hold here too.

MLflow finds the stores by entry points of the name ``determined+postgresql``. The server that the service
starts and stands before is :mod:`~determined_registry.mlflow.server`. Only this package imports mlflow,
which takes seconds and 170 MB: nothing that is imported by the service, an agent or `det` may import it.
"""
