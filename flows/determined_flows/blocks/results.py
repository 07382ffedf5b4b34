"""What the blocks answer: frozen records of a few values each, which Prefect can keep as JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Experiment(Record):
    """An experiment as it was when the block answered.

    ``state``: ``COMPLETED``, ``RUNNING`` and so on. ``best_metric``: the best value of the searcher's metric
    that any trial has reported; None: none was.
    """

    id: int
    name: str
    state: str
    metric: str | None = None
    best_metric: float | None = None


class Checkpoint(Record):
    """A checkpoint. ``metrics``: the numbers of the validation at its step."""

    uuid: str
    experiment_id: int
    trial_id: int
    steps_completed: int
    metrics: dict[str, float]


class Version(Record):
    """A version of a model in the registry."""

    model: str
    version: int
    checkpoint: str


class Move(Record):
    """An alias of a model that stands for ``version`` now; ``before``: the version until now, or None."""

    model: str
    alias: str
    version: int
    before: int | None


class Evaluation(Record):
    """Mean scores of a checkpoint by the user's ``evaluate`` function, on ``examples`` examples (0: the
    function gave no score for each example)."""

    checkpoint: str
    experiment_id: int
    scores: dict[str, float]
    examples: int


class ExperimentFailed(Exception):
    """An experiment ended in another state than COMPLETED; ``experiment`` says which."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        super().__init__(experiment)

    def __str__(self) -> str:
        one = self.experiment
        return (
            f"experiment {one.id} ({one.name}) ended {one.state}: see why with "
            f"`det experiment describe {one.id}` and `det experiment logs {one.id}`"
        )
