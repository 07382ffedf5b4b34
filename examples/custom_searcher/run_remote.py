"""Runs the search method as an experiment of its own (remote.yaml), which makes the one of the trials.

Its state is in its checkpoints: it may be paused, moved and killed.
"""

import logging

from space import search_method

import determined as det
from determined import searcher

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    with det.core.init() as core_context:
        runner = searcher.RemoteSearchRunner(search_method(), context=core_context)
        # `--include ../digits` put the training code beside this file.
        experiment_id = runner.run("trials.yaml", model_dir="digits")
    print(f"experiment {experiment_id} completed: {runner.state.experiment_completed}")
