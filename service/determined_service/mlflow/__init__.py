"""MLflow's server, a separate process behind the service, which starts and ends it."""
