"""The configurations that README and docs print are ones that the product takes."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from determined import expconf
from determined.common import cluster_config
from determined.common.cluster_config.config import ClusterConfig
from determined.common.pipeline import reading
from determined.expconf.policies import PolicyFile, check_policy
from determined_deployments.agent.config import AgentConfig
from determined_service.base.settings import Settings
from determined_service.retraining.plans import Plan
from tests import printed
from tests.printed import ROOT, Block

BLOCKS = [block for page in printed.pages() for block in printed.blocks(page)]
OF_EXPERIMENTS = {
    "name": "whole",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
}
OF_PLANS = {
    "evaluate": "module:function",
    "data_version": "module:function",
    "rule": {"metric": "m"},
}
BESIDE_PLANS = {"model", "experiment"}
"""What the file of a plan has beside what the service calls its plan."""


def of(language: str) -> list[Any]:
    chosen = [block for block in BLOCKS if block.language == language]
    return [pytest.param(block, id=str(block)) for block in chosen]


def judge(text: str) -> None:
    """Raises the product's errors for a configuration, or a part of one."""
    document = expconf.load_yaml(text, "page")
    data = document.data
    names = set(data)
    if "steps" in data:
        reading.read(
            document, lambda path: expconf.read_yaml(str(ROOT / "examples/pipeline" / path))
        )
    elif names <= {*Plan.model_fields, *BESIDE_PLANS}:
        given = {name: value for name, value in data.items() if name not in BESIDE_PLANS}
        Plan.model_validate({**OF_PLANS, **given})
    elif names <= set(PolicyFile.model_fields):
        check_policy(document, of_tasks=False)
    elif names <= set(ClusterConfig.model_fields):
        cluster_config.read_text(text)
    else:
        # With the fields that a part of an experiment's configuration does not show.
        expconf.check({**OF_EXPERIMENTS, **data})


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml(block: Block) -> None:
    judge(block.text)


@pytest.mark.parametrize("block", of("json"))
def test_json_is_of_the_settings_of_a_service_or_an_agent(block: Block) -> None:
    given = json.loads(block.text)
    assert set(given) <= {*Settings.model_fields, *AgentConfig.model_fields}
    for name, value in given.items():
        for model in (Settings, AgentConfig):
            if name in model.model_fields:
                model.__pydantic_validator__.validate_assignment(
                    model.model_construct(), name, value
                )


@pytest.mark.parametrize("block", of("toml"))
def test_toml_is_of_the_package_that_the_page_names(block: Block) -> None:
    package = ROOT / "tests/fixtures/toy_searcher/pyproject.toml"
    whole = tomllib.loads(package.read_text())["project"]
    assert tomllib.loads(block.text)["project"]["entry-points"] == whole["entry-points"]


@pytest.mark.parametrize(
    "text",
    [
        "searcher: {name: tpe, metric: loss, max_trails: 1, max_length: {epochs: 1}}",
        "resources: {slots_per_trail: 2}",
        "rule: {metric: accuracy, confidnece: 0.9}",
        "on: [{new_dta: {every_s: 600}}]",
        "quotas: {trails: 5}",
        "steps: [{name: a, experiment: search.yaml, neds: []}]",
    ],
)
def test_a_wrong_name_is_found_in_every_kind_of_block(text: str) -> None:
    with pytest.raises((ValueError, expconf.ConfigError)):
        judge(text)
