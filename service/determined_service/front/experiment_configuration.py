"""The configuration of an experiment: as it was written, as it was completed, and compared with another's."""

from __future__ import annotations

from typing import Annotated, Any

import yaml
from fastapi import Query, Request
from starlette.responses import Response

from determined import expconf
from determined.expconf import legacy
from determined.expconf.sources import WRITTEN, Source, sources
from determined_service.base.aside import aside
from determined_service.base.bounds import Id
from determined_service.front.diffs import diff
from determined_service.front.experiment import head
from determined_service.front.rendering import PageRouter, page
from determined_service.front.visits import Visitor

router = PageRouter()

OTHERWISE = "template, defaults of the owner, workspace, cluster or default"
"""The source of what is not written: an experiment does not keep which of these it was."""
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def as_yaml(config: Any) -> str:
    """The configuration as YAML text, sorted as by ``det experiment config``."""
    return str(yaml.dump(config, Dumper=_DUMPER, sort_keys=True, allow_unicode=True, width=100))


async def yaml_of(experiment: dict[str, Any]) -> str:
    """The complete configuration of an experiment (its JSON) as YAML text."""
    return await aside(len(experiment["originalConfig"]), as_yaml, experiment["config"])


def _sources(config: dict[str, Any], text: str) -> list[Source]:
    """None of them where the text cannot be read: its reader may not see it, or it is of an older form."""
    try:
        written = legacy.shim(expconf.load_yaml(text).data)
    except expconf.ConfigError:
        return []
    found = sources(config, [(WRITTEN, written)], OTHERWISE)
    return sorted(found, key=lambda one: one.path)


@router.get("/experiments/{experiment_id}/configuration", include_in_schema=False)
async def configuration(
    request: Request,
    visit: Visitor,
    experiment_id: Id,
    against: Annotated[str, Query(pattern=r"^[0-9]{0,9}$")] = "",
) -> Response:
    """``against``: another experiment, with whose complete configuration this one's is compared."""
    shown = await head(visit, experiment_id)
    experiment = shown["experiment"]
    completed = await yaml_of(experiment)
    compared = None
    if against:
        other = (await visit.get(f"/experiments/{against}"))["experiment"]
        names = (f"experiment {other['id']}", f"experiment {experiment_id}")
        compared = await diff(await yaml_of(other), completed, names)
    text = experiment["originalConfig"]
    found = await aside(len(text), _sources, experiment["config"], text)
    return page(
        "experiment_configuration",
        request,
        visit,
        tab="configuration",
        completed=completed,
        sources=found,
        against=against,
        compared=compared,
        **(shown | {"live": "", "command": f"det experiment config {experiment_id}"}),
    )
