"""The requests of a script outside of the cluster about its experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from determined import core, errors
from determined.experimental import Determined, core_v2
from determined.experimental.core_v2 import _config
from tests.unit.core.core_workers import together


def test_the_configuration(tmp_path: Path) -> None:
    config = core_v2.Config(name="n", hparams={"lr": 0.5}, checkpoint_storage=str(tmp_path))
    found = _config.experiment_config(config, None)
    assert found["checkpoint_storage"] == {"type": "directory", "container_path": str(tmp_path)}
    assert found["hyperparameters"] == {"lr": 0.5}
    assert found["searcher"] == {"name": "single", "metric": "unmanaged"}
    section = {"type": "s3", "bucket": "b"}
    assert _config.experiment_config(config, section)["checkpoint_storage"] == section
    found = _config.experiment_config(core_v2.Config(), "s3://b/p")
    assert found["checkpoint_storage"] == {"type": "s3", "bucket": "b", "prefix": "p"}
    assert found["name"].startswith("unmanaged-")


def test_the_default_storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    found = _config.experiment_config(core_v2.Config(), None)["checkpoint_storage"]
    assert found["container_path"] == str(tmp_path / "determined" / "checkpoints")


def test_arguments_of_early_releases() -> None:
    with pytest.warns(FutureWarning, match="use Config"):
        defaults = core_v2.DefaultConfig(name="n", hparams={"a": 1})
    with pytest.warns(FutureWarning, match="use Config"):
        unmanaged = core_v2.UnmanagedConfig(external_experiment_id="e", workspace="w")
    with pytest.warns(FutureWarning, match="use config"):
        found = _config.merged(None, defaults, unmanaged)
    assert found == core_v2.Config(
        name="n", hparams={"a": 1}, external_experiment_id="e", workspace="w"
    )
    config = core_v2.Config(name="this one")
    assert _config.merged(config, None, None) is config


def test_in_several_processes_a_mistake_is_everybodys(client: Determined) -> None:
    def begin(dist: core.DistributedContext) -> None:
        config = core_v2.Config(external_trial_id="t")
        core_v2.init_context(client=client, config=config, distributed=dist)

    first, second = together(begin, 2)
    assert isinstance(first, ValueError)
    assert isinstance(second, errors.WorkerError)
    for error in (first, second):
        assert "external_trial_id needs external_experiment_id" in str(error)


def test_mistakes(client: Determined) -> None:
    with pytest.raises(ValueError, match="needs config="):
        core_v2.init_context(client=client)
    with pytest.raises(ValueError, match="external_trial_id needs external_experiment_id"):
        core_v2.init(client=client, config=core_v2.Config(external_trial_id="t"))
    with pytest.raises(TypeError, match="external_experiment_id must be a string, found 5"):
        core_v2.init(client=client, config=core_v2.Config(external_experiment_id=5))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="call core_v2"):
        core_v2.url_reverse_webui_exp_view()
    core_v2.close()
    assert core_v2.train is None
