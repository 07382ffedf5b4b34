"""The checkpoint storage of a cluster configuration is tried before the configuration is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from determined_deployments.local import configuration, storage
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout
from tests.unit.deployments.test_plan import Notes


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout.of(tmp_path / "data")
    made.create()
    return made


def write(folder: Path, section: str) -> str:
    path = folder / "given.yaml"
    path.write_text(f"checkpoint_storage: {section}\n")
    return str(path)


def test_a_storage_that_takes_files_leaves_none_behind(layout: Layout, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    given = write(tmp_path, f"{{type: shared_fs, host_path: {folder}}}")
    chosen = configuration.choose(layout, given, Notes())
    assert chosen.text == configuration.kept(layout) == Path(given).read_text()
    assert list(folder.iterdir()) == []


def test_a_configuration_whose_storage_takes_no_files_is_refused(
    layout: Layout, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    given = write(tmp_path, f"{{type: shared_fs, host_path: {tmp_path}/file}}")
    with pytest.raises(
        ClusterError, match=r"given\.yaml: checkpoint_storage: no trial could save"
    ) as said:
        configuration.choose(layout, given, Notes())
    assert f"{tmp_path}/file" in str(said.value)
    assert configuration.kept(layout) is None


def test_a_client_library_that_is_missing_is_named(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = """raise ImportError("No module named 'boto3'")"""
    (tmp_path / "boto3.py").write_text(fake)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    given = write(tmp_path, "{type: s3, bucket: models}")
    with pytest.raises(ClusterError, match="boto3"):
        configuration.choose(layout, given, Notes())


def test_a_storage_that_is_away_holds_up_no_start(layout: Layout, tmp_path: Path) -> None:
    """The applied configuration stays in use; a note explains why checkpoints will fail."""
    folder = tmp_path / "checkpoints"
    given = write(tmp_path, f"{{type: shared_fs, host_path: {folder}}}")
    configuration.choose(layout, given, Notes())
    folder.rmdir()
    folder.touch()
    notes = Notes()
    assert configuration.choose(layout, None, notes).text is not None
    (line,) = notes.lines
    assert "cluster.yaml: checkpoint_storage: no trial could save a checkpoint there" in line


def test_a_server_that_does_not_answer_is_given_up(layout: Layout, tmp_path: Path) -> None:
    section = (
        "{type: s3, bucket: b, endpoint_url: 'http://127.0.0.1:9', access_key: a, secret_key: b}"
    )
    configuration._keep(layout, f"checkpoint_storage: {section}\n")
    config, _ = configuration.cluster_config.read_file(layout.cluster_config)
    assert storage.problem(config, seconds=0.1) == "it did not answer within 0 s"
