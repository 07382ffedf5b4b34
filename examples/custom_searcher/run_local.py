"""Runs the search method in this process and its trials on the cluster.

    python run_local.py

The state is kept in ./searcher_state: a script that was killed and started again goes on where it was.
"""

import logging
import pathlib

from space import search_method

from determined import searcher

HERE = pathlib.Path(__file__).resolve().parent

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    runner = searcher.LocalSearchRunner(
        search_method(), searcher_dir=pathlib.Path("searcher_state")
    )
    experiment_id = runner.run(str(HERE / "trials.yaml"), model_dir=str(HERE.parent / "digits"))
    print(f"experiment {experiment_id} completed: {runner.state.experiment_completed}")
