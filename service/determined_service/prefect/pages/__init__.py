"""The pages of our runs in Prefect: artifacts of runs of experiments, trials and retrainings."""
