"""The searcher: which trials are made, and how long each trains.

Both published forms are read. In the older one ``max_length`` says how long trials train; in the newer
one the training code decides and ASHA compares trials by ``time_metric`` up to ``max_time``.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from determined.expconf.base import WHOLE, Int, Natural, Positive, Section, Text, by_key, member
from determined.expconf.length import PositiveLength, SearcherLength

Mode = Literal["aggressive", "standard", "conservative"]
Divisor = Annotated[float, Field(gt=1)]


class BaseSearcher(Section):
    """What every searcher has; these fields survive a change of searcher when configs are merged."""

    name: str = Field(description="kind of searcher")
    metric: Text = Field(description="validation metric that decides which trial is best")
    smaller_is_better: bool = Field(True, description="whether small values of metric are good")


class WarmStart(BaseSearcher):
    """A searcher whose trials can start from an earlier checkpoint."""

    source_trial_id: Int | None = Field(
        None, description="start all trials from the latest checkpoint of this trial"
    )
    source_checkpoint_uuid: str | None = Field(
        None, description="start all trials from this checkpoint"
    )


class SingleSearcher(WarmStart):
    """One trial."""

    name: Literal["single"]
    max_length: SearcherLength | None = Field(None, description="how long the trial trains")


class RandomSearcher(WarmStart):
    """Independent random samples."""

    name: Literal["random"]
    max_trials: Positive = Field(description="how many trials to make")
    max_concurrent_trials: Natural = Field(16, description="trials at a time; 0 = no limit")
    max_length: SearcherLength | None = Field(None, description="how long each trial trains")


class GridSearcher(WarmStart):
    """Every point of a grid."""

    name: Literal["grid"]
    max_concurrent_trials: Natural = Field(16, description="trials at a time; 0 = no limit")
    max_length: SearcherLength | None = Field(None, description="how long each trial trains")


class HalvingSearcher(WarmStart):
    """What the two forms of asynchronous successive halving share."""

    max_trials: Positive = Field(description="how many trials to make")
    divisor: Divisor = Field(4.0, description="one trial in this many goes on at each rung")
    max_concurrent_trials: Natural = Field(16, description="trials at a time; 0 = automatic")
    max_length: PositiveLength | None = Field(None, description="how long the best trials train")
    time_metric: Text | None = Field(
        None, description="metric that says how far a trial has trained, such as batches"
    )
    max_time: Positive | None = Field(
        None, description="how long the best trials train, in units of time_metric"
    )
    stop_once: bool | None = Field(
        None, description="stop trials at a rung instead of pausing them for a later promotion"
    )

    @model_validator(mode="before")
    @classmethod
    def _promotion_by_default(cls, data: Any) -> Any:
        """With a length, trials are promoted unless stopping is asked for; else nothing to choose."""
        if not isinstance(data, dict) or data.get("stop_once") is not None:
            return data
        reports_time = data.get("max_time") is not None or data.get("time_metric") is not None
        if data.get("max_length") is None or reports_time:
            return data
        return {**data, "stop_once": False}


class AsyncHalvingSearcher(HalvingSearcher):
    """Asynchronous successive halving with a given number of rungs."""

    name: Literal["async_halving"]
    num_rungs: Positive = Field(description="number of rungs")


class AdaptiveAshaSearcher(HalvingSearcher):
    """Several asynchronous successive halvings with different numbers of rungs."""

    name: Literal["adaptive_asha"]
    mode: Mode = Field("standard", description="how early bad trials are stopped")
    max_rungs: Positive = Field(5, description="largest number of rungs")
    bracket_rungs: list[Positive] = Field([], description="number of rungs of each halving")


class CustomSearcher(BaseSearcher):
    """A searcher of the user's own, run by a search runner; its further fields are free."""

    model_config = ConfigDict(extra="allow")

    name: Literal["custom"]
    unit: Literal["batches", "records", "epochs"] | None = Field(
        None, description="unit of the lengths the search method asks for"
    )


class SyncHalvingSearcher(WarmStart):
    """Removed; read so that old experiments still load."""

    retired = True

    name: Literal["sync_halving"]
    num_rungs: Positive
    max_length: PositiveLength
    budget: PositiveLength
    divisor: Divisor = 4.0
    train_stragglers: bool = True


class AdaptiveSearcher(WarmStart):
    """Removed; read so that old experiments still load."""

    retired = True

    name: Literal["adaptive"]
    max_length: PositiveLength
    budget: PositiveLength
    mode: Mode = "standard"
    divisor: Divisor = 4.0
    max_rungs: Positive = 5
    bracket_rungs: list[Positive] = []
    train_stragglers: bool = True


class AdaptiveSimpleSearcher(WarmStart):
    """Removed; read so that old experiments still load."""

    retired = True

    name: Literal["adaptive_simple"]
    max_length: PositiveLength
    max_trials: Annotated[int, Field(ge=1, le=2000), WHOLE]
    mode: Mode = "standard"
    divisor: Divisor = 4.0
    max_rungs: Positive = 5


#: Searchers that new experiments cannot use.
REMOVED = {
    "sync_halving": "SyncHalvingSearcher",
    "adaptive": "AdaptiveSearcher",
    "adaptive_simple": "AdaptiveSimpleSearcher",
}

Searcher = Annotated[
    Annotated[SingleSearcher, member("SingleSearcher")]
    | Annotated[RandomSearcher, member("RandomSearcher")]
    | Annotated[GridSearcher, member("GridSearcher")]
    | Annotated[AdaptiveAshaSearcher, member("AdaptiveAshaSearcher")]
    | Annotated[AsyncHalvingSearcher, member("AsyncHalvingSearcher")]
    | Annotated[CustomSearcher, member("CustomSearcher")]
    | Annotated[SyncHalvingSearcher, member("SyncHalvingSearcher")]
    | Annotated[AdaptiveSearcher, member("AdaptiveSearcher")]
    | Annotated[AdaptiveSimpleSearcher, member("AdaptiveSimpleSearcher")],
    by_key(
        "name",
        {
            "single": "SingleSearcher",
            "random": "RandomSearcher",
            "grid": "GridSearcher",
            "adaptive_asha": "AdaptiveAshaSearcher",
            "async_halving": "AsyncHalvingSearcher",
            "custom": "CustomSearcher",
        },
        retired=REMOVED,
    ),
]
