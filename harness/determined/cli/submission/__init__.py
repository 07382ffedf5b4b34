"""How a configuration file becomes an experiment: the plan, the cluster to submit to, the test first."""
