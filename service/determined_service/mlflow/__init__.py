"""MLflow's server, a process of its own that the service starts, stands before and ends."""
