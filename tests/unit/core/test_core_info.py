"""ClusterInfo from the environment and from files; import_from_path; ExperimentConfig; util."""

from __future__ import annotations

import json
import logging
import sys
from concurrent import futures
from pathlib import Path

import pytest

import determined as det
from determined import _info

ENV = {
    "DET_MASTER": "http://127.0.0.1:8080",
    "DET_CLUSTER_ID": "c1",
    "DET_AGENT_ID": "a1",
    "DET_SLOT_IDS": "[0, 1]",
    "DET_TASK_ID": "5.abc",
    "DET_ALLOCATION_ID": "5.abc.3",
    "DET_SESSION_TOKEN": "secret",
    "DET_TASK_TYPE": "TRIAL",
    "DET_EXPERIMENT_ID": "5",
    "DET_TRIAL_ID": "9",
    "DET_TRIAL_RUN_ID": "3",
    "DET_TRIAL_SEED": "42",
    "DET_EXPERIMENT_CONFIG": json.dumps({"data": {"url": "x"}, "debug": True}),
    "DET_HPARAMS": json.dumps({"lr": 0.5}),
    "DET_STEPS_COMPLETED": "100",
    "DET_LATEST_CHECKPOINT": "some-uuid",
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_info, "_loaded", [])
    for name in ENV:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DET_RUN_DIR", str(tmp_path))


def set_env(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    for name, value in {**ENV, **changes}.items():
        monkeypatch.setenv(name, value)


def test_off_cluster_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_MASTER", "http://users.laptop:8080")
    assert det.get_cluster_info() is None


def test_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    set_env(monkeypatch)
    info = det.get_cluster_info()
    assert info is not None
    assert (info.master_url, info.slot_ids, info.allocation_id) == (
        "http://127.0.0.1:8080",
        [0, 1],
        "5.abc.3",
    )
    assert info.latest_checkpoint == "some-uuid"
    assert info.user_data == {"url": "x"}
    assert info.trial.hparams == {"lr": 0.5}
    assert (info.trial.trial_id, info.trial.trial_seed, info.trial._trial_run_id) == (9, 42, 3)
    assert (info.trial._steps_completed, info.trial._debug) == (100, True)
    assert (info.container_rank, info.container_slot_counts) == (0, [2])
    assert "secret" not in repr(info)


def test_files_say_the_same_as_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    set_env(monkeypatch)
    info = det.get_cluster_info()
    assert info is not None
    info._to_file()
    info.trial._to_file()
    det.RendezvousInfo(["10.0.0.1", "10.0.0.2"], 1, [2, 2])._to_file()
    det.ResourcesInfo(["GPU-1"])._to_file()
    for name in ENV:
        monkeypatch.delenv(name)
    monkeypatch.setattr(_info, "_loaded", [])
    again = det.get_cluster_info()
    assert again is not None
    assert again._fields() == info._fields()
    assert again.trial._fields() == info.trial._fields()
    assert (again.container_addrs, again.container_rank) == (["10.0.0.1", "10.0.0.2"], 1)
    assert again.gpu_uuids == ["GPU-1"]
    mode = (_info.info_dir() / "cluster_info.json").stat().st_mode
    assert mode & 0o077 == 0


def test_other_tasks_have_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    set_env(monkeypatch, DET_TASK_TYPE="NOTEBOOK")
    info = det.get_cluster_info()
    assert info is not None
    assert (info.latest_checkpoint, info.user_data) == (None, {})
    with pytest.raises(RuntimeError, match="NOTEBOOK"):
        info.trial


def test_import_from_path_loads_a_second_module_of_the_same_name(tmp_path: Path) -> None:
    for folder, value in (("old", 1), ("new", 2)):
        (tmp_path / folder / "det_test_pkg").mkdir(parents=True)
        (tmp_path / folder / "det_test_model.py").write_text(
            f"from det_test_pkg import part\nvalue = part.value\nname = {folder!r}\n"
        )
        (tmp_path / folder / "det_test_pkg" / "part.py").write_text(f"value = {value}\n")
    with det.import_from_path(tmp_path / "new"):
        import det_test_model  # type: ignore[import-not-found]

        new = det_test_model
    assert "det_test_model" not in sys.modules
    assert str(tmp_path / "new") not in sys.path
    sys.modules["det_test_model"] = new
    try:
        with det.import_from_path(tmp_path / "old"):
            import det_test_model

            old = det_test_model
        assert (old.value, old.name, new.value, new.name) == (1, "old", 2, "new")
        assert sys.modules["det_test_model"] is new
        assert "det_test_pkg.part" not in sys.modules
    finally:
        del sys.modules["det_test_model"]


def test_import_from_path_cannot_be_nested(tmp_path: Path) -> None:
    for folder in ("outer", "inner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "det_test_nested.py").write_text(f"name = {folder!r}\n")
    path, modules = list(sys.path), set(sys.modules)
    with det.import_from_path(tmp_path / "outer"):
        import det_test_nested  # type: ignore[import-not-found]

        with (
            pytest.raises(RuntimeError, match="in use already"),
            det.import_from_path(tmp_path / "inner"),
        ):
            pytest.fail("entered")
        assert sys.modules["det_test_nested"] is det_test_nested
        assert det_test_nested.name == "outer"
    with pytest.raises(KeyError), det.import_from_path(tmp_path / "inner"):
        import det_test_nested

        assert det_test_nested.name == "inner"
        raise KeyError
    assert (sys.path, set(sys.modules)) == (path, modules)


def test_import_from_path_is_for_one_thread_at_a_time(tmp_path: Path) -> None:
    def enter() -> None:
        with det.import_from_path(tmp_path):
            pass

    with futures.ThreadPoolExecutor(1) as other:
        with (
            det.import_from_path(tmp_path),
            pytest.raises(RuntimeError, match="in use already"),
        ):
            other.submit(enter).result()
        other.submit(enter).result()


def test_import_from_path_leaves_the_interpreters_modules_alone(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    with det.import_from_path(tmp_path):
        assert sys.modules["json"] is json


def test_import_from_path_names_a_missing_directory(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match="nowhere"),
        det.import_from_path(tmp_path / "nowhere"),
    ):
        pass


def test_experiment_config() -> None:
    config = det.ExperimentConfig(
        {
            "resources": {"slots_per_trial": 4},
            "searcher": {"metric": "loss"},
            "reproducibility": {"experiment_seed": 7},
            "profiling": {"enabled": True, "begin_on_batch": 5, "end_after_batch": None},
            "entrypoint": ["python3", "x.py"],
        }
    )
    assert config.slots_per_trial() == 4
    assert config.get_searcher_metric() == "loss"
    assert config.experiment_seed() == 7
    assert config.profiling_interval() == (5, None)
    assert config.scheduling_unit() == 100
    assert config.get_entrypoint() == ["python3", "x.py"]
    with pytest.raises(ValueError, match="entrypoint"):
        det.ExperimentConfig({"entrypoint": 3}).get_entrypoint()
    with pytest.raises(ValueError, match=r"searcher\.metric"):
        det.ExperimentConfig({}).get_searcher_metric()


def test_batch_sizes(caplog: pytest.LogCaptureFixture) -> None:
    assert det.util.calculate_batch_sizes({"global_batch_size": 32}, 4, "T") == (8, 32)
    with caplog.at_level(logging.WARNING):
        assert det.util.calculate_batch_sizes({"global_batch_size": 33}, 4, "T") == (8, 32)
    assert "33" in caplog.text
    for hparams in ({}, {"global_batch_size": "8"}, {"global_batch_size": 3}):
        with pytest.raises(det.errors.InvalidExperimentException, match="global_batch_size"):
            det.util.calculate_batch_sizes(hparams, 4, "T")


def test_a_configuration_too_large_for_the_environment_is_read_from_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_env(monkeypatch)
    info = det.get_cluster_info()
    assert info is not None
    info.trial._to_file()
    monkeypatch.delenv("DET_EXPERIMENT_CONFIG")
    monkeypatch.setattr(_info, "_loaded", [])
    again = det.get_cluster_info()
    assert again is not None
    assert again.trial._fields() == info.trial._fields()
