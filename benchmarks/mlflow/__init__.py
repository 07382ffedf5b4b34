"""MLflow's store over our tables beside MLflow's own."""
