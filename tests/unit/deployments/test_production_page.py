"""The files in docs/operate/production.md are valid for the programs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from determined.common import cluster_config
from determined_service.base.settings import Settings
from tests import printed
from tests.printed import ROOT
from tests.unit.test_printed import wrong

BLOCKS = printed.blocks(ROOT / "docs/operate/production.md")
UNITS = {Path(block.marks["file"]).stem: block for block in BLOCKS if block.language == "ini"}


def document(name: str) -> str:
    """The text that a shell writes to /etc/determined/``name``."""
    found = re.search(
        rf"^cat >/etc/determined/{re.escape(name)} <<'?END'?\n(.*?)^END$",
        "\n".join(block.text for block in BLOCKS),
        re.DOTALL | re.MULTILINE,
    )
    assert found is not None, name
    return found[1]


def test_the_settings_of_the_service_are_those_that_it_reads() -> None:
    text = document("service.yaml").replace("$CLUSTER_ID", "5f0f9a6e-9f0a-4a0e-8c6f-0d7c1f6f1e11")
    settings = Settings.model_validate(yaml.safe_load(text))
    assert settings.is_reachable
    assert settings.cluster_config_file == Path("/etc/determined/cluster.yaml")


def test_the_cluster_configuration_has_no_mistake() -> None:
    config, remarks = cluster_config.read_text(document("cluster.yaml"))
    assert not remarks
    assert [pool.pool_name for pool in config.resource_pools] == ["default"]


def test_every_secret_that_is_used_is_made() -> None:
    made = set(re.findall(r"^(\w+)=", document("secrets"), re.MULTILINE))
    used = {
        name
        for file in ("service.yaml", "agent.env")
        for name in re.findall(r"\$(\w+)", document(file))
    }
    assert used == made


@pytest.mark.parametrize("unit", UNITS)
def test_each_unit_starts_a_program_of_the_package(unit: str) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", UNITS[unit].text, re.MULTILINE)
    program, *words = shlex.split(line)
    if Path(program).name == "det":
        assert wrong(words) is None
    else:
        module = words[words.index("-m") + 1]
        folder = "service" if module == "determined_service" else "deployments"
        path = ROOT / folder / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def test_there_are_three_units() -> None:
    assert set(UNITS) == {"determined-prefect", "determined-service", "determined-agent"}
