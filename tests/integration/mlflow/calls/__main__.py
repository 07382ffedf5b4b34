"""``python -m tests.integration.mlflow.calls FOLDER [--short]``: every call against ``MLFLOW_TRACKING_URI``.

``--short`` leaves out what takes long: scripts that train, and most calls of traces, which are all refused.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow

from tests.integration.mlflow.calls import of_client, of_flavours, of_mlflow, of_rest, of_suites
from tests.integration.mlflow.calls.reasons import group_of
from tests.integration.mlflow.calls.side import Call, Side, answer

LONG = ("mlflow.evaluate", "mlflow.run", "mlflow.autolog", "mlflow.doctor")


def is_long(name: str) -> bool:
    return name in LONG or group_of(name) == "traces" or name.startswith("scripts.")


def calls() -> dict[str, Call]:
    """Every call by the name that a user writes."""
    found = {f"MlflowClient.{name}": call for name, call in of_client.CALLS.items()}
    found |= {f"mlflow.{name}": call for name, call in of_mlflow.CALLS.items()}
    found |= {f"scripts.{name}": call for name, call in of_flavours.CALLS.items()}
    found |= {f"REST.{name}": call for name, call in of_rest.CALLS.items()}
    return found | {f"suites.{name}": call for name, call in of_suites.CALLS.items()}


def answers(side: Side, asked: Mapping[str, Call]) -> dict[str, Any]:
    """The answers to the calls, in their order."""
    side.prepare()
    found = {}
    for name, call in asked.items():
        begun = time.monotonic()
        found[name] = answer(call, side)
        print(f"{time.monotonic() - begun:.2f} s {name}", flush=True)
        while mlflow.active_run() is not None:
            mlflow.end_run()
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    short = sys.argv[2:] == ["--short"]
    asked = {name: call for name, call in calls().items() if not (short and is_long(name))}
    side = Side(mlflow.get_tracking_uri(), folder)
    (folder / "answers.json").write_text(json.dumps(answers(side, asked)))


if __name__ == "__main__":
    main()
