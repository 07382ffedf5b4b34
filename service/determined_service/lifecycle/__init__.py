"""The life cycle of experiments, trials, legs and agents."""
