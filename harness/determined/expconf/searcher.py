"""The ``searcher`` section: which trials are created, and how long each trains.

Both published forms are accepted. In the older one, ``max_length`` sets how long trials train. In the
newer one the training code decides, and ASHA compares trials by ``time_metric`` up to ``max_time``.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    ValidationError,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails

from determined.expconf import plugins
from determined.expconf.base import (
    MEMBER_MARK,
    WHOLE,
    Count,
    Natural,
    Positive,
    Section,
    Text,
    broken,
    by_choice,
    member,
)
from determined.expconf.length import PositiveLength, SearcherLength

Mode = Literal["aggressive", "standard", "conservative"]
Divisor = Annotated[float, Field(gt=1)]


class BaseSearcher(Section):
    """The fields of every searcher; a merge keeps them even if the searchers differ."""

    name: str = Field(description="kind of searcher")
    metric: Text = Field(description="validation metric that decides which trial is best")
    smaller_is_better: bool = Field(
        True, description="whether smaller values of the metric are better"
    )


class WarmStart(BaseSearcher):
    """A searcher whose trials can start from an earlier checkpoint."""

    source_trial_id: Count | None = Field(
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
    max_trials: Positive = Field(description="how many trials to create")
    max_concurrent_trials: Natural = Field(16, description="trials at a time; 0 = no limit")
    max_length: SearcherLength | None = Field(None, description="how long each trial trains")


class GridSearcher(WarmStart):
    """Every point of a grid."""

    name: Literal["grid"]
    max_concurrent_trials: Natural = Field(16, description="trials at a time; 0 = no limit")
    max_length: SearcherLength | None = Field(None, description="how long each trial trains")


class HalvingSearcher(WarmStart):
    """The fields that both forms of asynchronous successive halving share."""

    max_trials: Positive = Field(description="how many trials to create")
    divisor: Divisor = Field(4.0, description="at each rung, one of this many trials continues")
    max_concurrent_trials: Natural = Field(16, description="trials at a time; 0 = automatic")
    max_length: SearcherLength | None = Field(None, description="how long the best trials train")
    time_metric: Text | None = Field(
        None, description="metric that measures how far a trial has trained, such as batches"
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
        """Promote trials by default if there is a length; without one, stopping is the only form."""
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
    """The user's own searcher, run by a search runner; it may have any further fields."""

    model_config = ConfigDict(extra="allow")

    name: Literal["custom"]
    unit: Literal["batches", "records", "epochs"] | None = Field(
        None, description="unit of the lengths that the search method requests"
    )


class PluginSearcher(WarmStart):
    """A searcher of an installed package, read by the package's own model (see ``plugins.py``)."""

    @model_validator(mode="wrap")
    @classmethod
    def _by_its_own_model(cls, data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if cls is not PluginSearcher or not isinstance(data, Mapping):
            return handler(data)
        name = data["name"]
        try:
            section = plugin_section(name)
        except plugins.PluginError as error:
            problem = InitErrorDetails(type=broken(str(error)), loc=("name",), input=name)
            raise ValidationError.from_exception_data(cls.__name__, [problem]) from error
        return handler(data) if section is None else section.model_validate(data)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The installed searchers that can be imported; the others have no schema."""
        if cls is not PluginSearcher:
            return handler(core)
        usable = []
        for name in plugin_names():
            try:
                section = plugin_section(name)
            except plugins.PluginError:
                continue
            if section is not None:
                usable.append(handler(section.__pydantic_core_schema__))
        return {"anyOf": usable} if usable else {"not": {}}


class SyncHalvingSearcher(WarmStart):
    """Removed; still accepted so that old experiments load."""

    retired = True

    name: Literal["sync_halving"]
    num_rungs: Positive
    max_length: PositiveLength
    budget: PositiveLength
    divisor: Divisor = 4.0
    train_stragglers: bool = True


class AdaptiveSearcher(WarmStart):
    """Removed; still accepted so that old experiments load."""

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
    """Removed; still accepted so that old experiments load."""

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

#: ``name`` -> the model of its section.
BUILT_IN = {
    "single": "SingleSearcher",
    "random": "RandomSearcher",
    "grid": "GridSearcher",
    "adaptive_asha": "AdaptiveAshaSearcher",
    "async_halving": "AsyncHalvingSearcher",
    "custom": "CustomSearcher",
}


def plugin_names() -> list[str]:
    """Searchers that installed packages offer; they cannot replace a built-in or removed one."""
    return [name for name in plugins.offered() if name not in {**BUILT_IN, **REMOVED}]


def plugin_section(name: object) -> type[Section] | None:
    """The model of an installed package's searcher; None if no package offers the name.

    Raises:
        plugins.PluginError: the package cannot be used.
    """
    if not isinstance(name, str) or name in BUILT_IN or name in REMOVED:
        return None
    point = plugins.offered().get(name)
    return None if point is None else plugins.section_of(point, PluginSearcher)


def _choose(value: Any) -> str | None:
    if isinstance(value, PluginSearcher):
        return MEMBER_MARK + PluginSearcher.__name__
    if isinstance(value, Section):
        return MEMBER_MARK + type(value).__name__
    name = value.get("name") if isinstance(value, Mapping) else None
    if not isinstance(name, str):
        return None
    found = BUILT_IN.get(name) or REMOVED.get(name)
    if found is None and name in plugins.offered():
        found = PluginSearcher.__name__
    return None if found is None else MEMBER_MARK + found


Searcher = Annotated[
    Annotated[SingleSearcher, member("SingleSearcher")]
    | Annotated[RandomSearcher, member("RandomSearcher")]
    | Annotated[GridSearcher, member("GridSearcher")]
    | Annotated[AdaptiveAshaSearcher, member("AdaptiveAshaSearcher")]
    | Annotated[AsyncHalvingSearcher, member("AsyncHalvingSearcher")]
    | Annotated[CustomSearcher, member("CustomSearcher")]
    | Annotated[SerializeAsAny[PluginSearcher], member("PluginSearcher")]
    | Annotated[SyncHalvingSearcher, member("SyncHalvingSearcher")]
    | Annotated[AdaptiveSearcher, member("AdaptiveSearcher")]
    | Annotated[AdaptiveSimpleSearcher, member("AdaptiveSimpleSearcher")],
    by_choice(_choose, "name", BUILT_IN),
]
