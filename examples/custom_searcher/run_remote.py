"""Runs the search method as an experiment of its own (remote.yaml), which creates the experiment with the
trials.

The state of the search is in this experiment's checkpoints, so the experiment may be paused, moved and
killed.
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
