"""The configurations of commands, notebooks, shells, TensorBoards and generic tasks.

One class for each kind; what all have is in :class:`TaskConfig`. They are read, checked, merged with the
cluster's defaults and completed as experiments' are, and mistakes are reported in the same way.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from determined.common.wire import limits
from determined.expconf import legacy, merging, rules, translate
from determined.expconf.base import (
    WHOLE,
    WRONG_SHAPE,
    AlsoAccepts,
    Count,
    PositiveCount,
    Section,
    Text,
    by_shape,
    member,
)
from determined.expconf.document import Document
from determined.expconf.durations import DURATION_PATTERN
from determined.expconf.environment import Environment
from determined.expconf.fields import FileFormat
from determined.expconf.hpc import Pbs, Slurm
from determined.expconf.mounts import BindMount
from determined.expconf.paths import Path
from determined.expconf.problems import ConfigError, Problem
from determined.expconf.resources import DeviceMapping, Size
from determined.expconf.translate import Finding
from determined.expconf.validation import as_document, located

Words = Annotated[
    Annotated[str, member("text"), Field(min_length=1)]
    | Annotated[list[str], member("argv"), Field(min_length=1)],
    by_shape("a command, as text or as a list of words", text=str, argv=list),
]


def _with_unit(given: Any) -> Any:
    if isinstance(given, int | float) and not isinstance(given, bool):
        raise PydanticCustomError(WRONG_SHAPE, "{expected}", {"expected": WITH_UNIT.format(given)})
    return given


WITH_UNIT = "a duration with its unit, such as '{0}s' or '{0}m'"
Duration = Annotated[str, BeforeValidator(_with_unit), Field(pattern=DURATION_PATTERN)]


class TaskResources(Section):
    """The ``resources`` section of a task."""

    slots: Count = Field(1, description="slots (GPUs, else CPU slots); 0 is allowed")
    max_slots: Count | None = Field(None, description="no longer used: `slots` is the number")
    weight: Annotated[float, Field(ge=0)] = Field(
        1.0, description="no effect: a task has all of its slots or waits for them"
    )
    priority: Annotated[int, Field(ge=1, le=99), WHOLE] | None = Field(
        None,
        description="a lower number is more important, on Kubernetes a higher one; default: the pool's",
    )
    resource_pool: str = Field("", description="resource pool; empty for the default one")
    shm_size: Size | None = Field(
        None, description="size of /dev/shm: bytes, or a size such as '4G'"
    )
    devices: list[
        Annotated[DeviceMapping, BeforeValidator(legacy.device), AlsoAccepts({"type": "string"})]
    ] = Field([], description="devices, as mappings or 'host:container[:rwm]'")


class NoSlots(TaskResources):
    """The same, of what needs no slot unless it asks for one."""

    slots: Count = Field(0, description="slots (GPUs, else CPU slots)")


class TaskConfig(Section):
    """The fields that configurations of all kinds share."""

    description: Annotated[str, Field(max_length=limits.NAME_CHARS)] = Field(
        "", description="what lists show; default: the kind and three words"
    )
    entrypoint: Words | None = Field(None, description="what to run: a list of words, or text")
    environment: Environment = Field(default_factory=Environment, description="surroundings")
    resources: TaskResources = Field(default_factory=TaskResources, description="slots and memory")
    bind_mounts: list[BindMount] = Field(
        [], description="directories of the machine under other paths"
    )
    work_dir: Text | None = Field(
        None,
        description="directory in which the task starts; may name $DET_USER and $AGENT_USER; not together "
        "with a context directory",
    )
    slurm: Slurm = Field(default_factory=Slurm, description="options for Slurm")
    pbs: Pbs = Field(default_factory=Pbs, description="options for PBS")
    debug: bool = Field(False, description="keep the task's directory after its end")


class CommandConfig(TaskConfig):
    """Of ``det cmd run`` and ``det run``."""

    return_files: bool = Field(
        False, description="keep the files that it changes for its owner (det run --fetch)"
    )


class NotebookConfig(TaskConfig):
    """Of ``det notebook start``."""

    idle_timeout: Duration | None = Field(
        None, description="end after this long without use, such as '1h30m'"
    )
    notebook_idle_type: Literal["kernels_or_terminals", "kernel_connections", "activity"] = Field(
        "kernels_or_terminals", description="what counts as use"
    )


class ShellConfig(TaskConfig):
    """Of ``det shell start``."""

    idle_timeout: Duration | None = Field(
        None, description="end after this long without a connection, such as '1h30m'"
    )


class TensorboardConfig(TaskConfig):
    """Of ``det tensorboard start``."""

    resources: NoSlots = Field(default_factory=NoSlots, description="slots and memory")
    tensorboard_args: list[str] = Field([], description="further arguments of TensorBoard")
    idle_timeout: Duration | None = Field(
        None, description="end when nobody has looked for this long, such as '5m'"
    )


class GenericConfig(TaskConfig):
    """Of ``det task create``."""

    name: Annotated[str, Field(max_length=limits.NAME_CHARS)] = Field(
        "", description="the same as `description`"
    )
    workspace: str = Field("", description="workspace of the task")
    project: str = Field("", description="project of the task")
    preemption_timeout: PositiveCount | None = Field(
        None,
        description="seconds that the process has to end by itself when the task is paused; default: none",
    )


#: Fields of ``task_container_defaults`` that only some kinds have.
_ONLY_SOME = ("log_policies", "preemption_timeout")


@functools.cache
def format_of(root: type[TaskConfig]) -> FileFormat:
    """The kind of file; one object for each class."""
    return FileFormat(root, ("environment", "resources"), "docs/sit-down/tasks.md", legacy.RENAMED)


def complete_task(
    config: Mapping[str, Any] | Document,
    root: type[TaskConfig],
    *,
    template: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    above: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The complete configuration of a new task of the kind ``root``, plain JSON with every field.

    ``above``: values that win over ``config``, in today's form; of these, too, the kind takes its own fields.
    ``template``: values for what ``config`` does not set; fields that tasks of this kind lack do nothing, and
    a list of the configuration replaces the template's. ``defaults``: the cluster's container defaults, as an
    experiment's configuration has them. Completing the result again changes nothing. Raises ConfigError with
    all problems.
    """
    document = as_document(config)
    found = [*_examine(document.data, root)[1], *rules.masked(document.data)]
    _raise(found, document)
    if template:
        document = replace(document, data=with_template(document.data, _heeded(template, root)))
    if above:
        document = replace(document, data=merged_above(_heeded(above, root), document.data))
    beneath = {
        key: value
        for key, value in (defaults or {}).items()
        if key in root.model_fields and (key not in _ONLY_SOME or root is GenericConfig)
    }
    merged = _merged(document.data, beneath)
    model, found = _examine(merged, root)
    _raise(found, document)
    assert model is not None
    return model.model_dump(mode="json")


def _heeded(template: Mapping[str, Any], root: type[TaskConfig]) -> dict[str, Any]:
    """The template without fields that only experiments have, or other kinds of tasks."""
    heeded = {key: value for key, value in template.items() if key in root.model_fields}
    resources = heeded.get("resources")
    if isinstance(resources, dict):
        known = TaskResources.model_fields.keys()
        heeded["resources"] = {key: value for key, value in resources.items() if key in known}
    return heeded


def with_template(mine: Any, other: Any) -> Any:
    """As Determined merges them for tasks: mappings key by key, everything else as a whole."""
    if not isinstance(mine, dict) or not isinstance(other, dict):
        return mine
    return {**other, **{key: with_template(mine[key], other.get(key)) for key in mine}}


def merged_above(above: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A task's configuration in today's form with ``above`` laid over it."""
    merged = merging.merge(above, None, config)
    layers = [layer.get("resources") for layer in (above, config)]
    found = [
        one["slots"] for one in layers if isinstance(one, dict) and one.get("slots") is not None
    ]
    if found:
        merged["resources"] = {**merged["resources"], "slots": found[0]}
    return merged


class _AnyTask(CommandConfig, NotebookConfig, ShellConfig, TensorboardConfig, GenericConfig):
    """With the fields of all kinds."""


def examine_any_task(config: dict[str, Any]) -> list[Finding]:
    """The mistakes in fields of tasks of whichever kind."""
    return _examine(config, _AnyTask)[1]


def task_fields() -> set[str]:
    """The fields that some kind of task has."""
    kinds = (CommandConfig, NotebookConfig, ShellConfig, TensorboardConfig, GenericConfig)
    return {name for kind in kinds for name in kind.model_fields}


def check_task(config: Mapping[str, Any] | Document, root: type[TaskConfig]) -> None:
    """Check a configuration as far as possible without a cluster. Raises ConfigError."""
    complete_task(config, root)


def _merged(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    merged = merging.merge(config, None, defaults)
    # Of an experiment `resources.slots` is a field of old, and dropped.
    resources = config.get("resources")
    if isinstance(resources, dict) and resources.get("slots") is not None:
        merged["resources"] = {**merged["resources"], "slots": resources["slots"]}
    return merged


def _examine(
    data: dict[str, Any], root: type[TaskConfig]
) -> tuple[TaskConfig | None, list[Finding]]:
    try:
        model, errors = root.model_validate(data), []
    except ValidationError as error:
        model, errors = None, error.errors(include_url=False)[: limits.CONFIG_PROBLEMS]
    found = [*translate.findings(errors, data, format_of(root)), *rules.consistency(data)]
    return model, list(dict.fromkeys(_in_place(one) for one in found))


def _in_place(finding: Finding) -> Finding:
    """A common mistake gets its answer: experiments call the field otherwise."""
    where: Path = ("resources", "slots_per_trial")
    if finding.path == where:
        message = (
            "unknown field; did you mean 'slots'? (a task has slots, trials have slots_per_trial)"
        )
        return replace(finding, message=message, suggestion="slots")
    return finding


def _raise(found: list[Finding], document: Document) -> None:
    problems: list[Problem] = located(found, document)
    if problems:
        raise ConfigError(problems)
