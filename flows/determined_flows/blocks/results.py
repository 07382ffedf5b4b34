"""The blocks' results: frozen records of a few values each, which Prefect can keep as JSON."""

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


class Command(Record):
    """A command as it was when the block answered. ``exit_code``: of its program, 128 and the signal that
    ended it; None: it has not ended. ``output``: the end of what it printed, 100 lines and 16,000 characters
    at most."""

    id: str
    state: str
    exit_code: int | None = None
    output: str = ""


class CommandFailed(Exception):
    """A command ended with another exit code than 0; ``command`` says which."""

    def __init__(self, command: Command) -> None:
        self.command = command
        super().__init__(command)

    def __str__(self) -> str:
        one = self.command
        tail = one.output.rstrip().rsplit("\n", 1)[-1]
        said = f", after {tail[:200]!r}" if tail else ""
        return (
            f"command {one.id} ended {one.state} with exit code {one.exit_code}{said}: see all of its output "
            f"with `det command logs {one.id}`"
        )


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
