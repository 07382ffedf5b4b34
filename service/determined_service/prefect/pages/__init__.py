"""What Prefect's pages of our runs tell: artifacts of an experiment's run and of a trial's."""
