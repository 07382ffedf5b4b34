"""What Prefect's pages of our runs tell: artifacts of runs of experiments, trials and retrainings."""
