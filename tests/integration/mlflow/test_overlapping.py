"""Sixteen threads of MLflow's client and one that reads, at each place where they say something of one run.

No answered change is lost. The same over the service's own addresses, and what else is changed in parts, is
in `tests/integration/service_api/test_overlapping.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    LoggedModelStatus,
    Metric,
    Param,
    RunTag,
)
from requests import HTTPError

from tests.integration.mlflow.conftest import Cluster
from tests.waiting import TIMEOUT_S

WRITERS = 16


@dataclass(frozen=True)
class Place:
    """``write`` says ``w<number>``; ``read`` returns its whole stored value."""

    write: Callable[[int], object]
    read: Callable[[], set[str]]


@dataclass(frozen=True)
class Around:
    """The objects that a place may need."""

    client: MlflowClient
    run: str
    experiment: str
    folder: Path

    def model(self) -> str:
        made = self.client.create_logged_model(self.experiment, "model", source_run_id=self.run)
        return str(made.model_id)

    def of_run(self, part: str) -> set[str]:
        return set(getattr(self.client.get_run(self.run).data, part))


PLACES: dict[str, Callable[[Around], Place]] = {}


def place(make: Callable[[Around], Place]) -> Callable[[Around], Place]:
    PLACES[make.__name__] = make
    return make


@place
def tags(around: Around) -> Place:
    return Place(
        lambda number: around.client.set_tag(around.run, f"w{number}", "x"),
        lambda: around.of_run("tags"),
    )


@place
def parameters(around: Around) -> Place:
    return Place(
        lambda number: around.client.log_param(around.run, f"w{number}", number),
        lambda: around.of_run("params"),
    )


@place
def batches(around: Around) -> Place:
    def write(number: int) -> None:
        key, now = f"w{number}", int(time.time() * 1000)
        around.client.log_batch(
            around.run, [Metric(key, 0.5, now, 1)], [Param(key, "1")], [RunTag(key, "1")]
        )

    def read() -> set[str]:
        return around.of_run("metrics") & around.of_run("params") & around.of_run("tags")

    return Place(write, read)


@place
def inputs(around: Around) -> Place:
    def write(number: int) -> None:
        data = Dataset(f"w{number}", "digest", "local", "{}")
        around.client.log_inputs(around.run, [DatasetInput(data, [])])

    def read() -> set[str]:
        found = around.client.get_run(around.run).inputs.dataset_inputs
        return {one.dataset.name for one in found}

    return Place(write, read)


@place
def tags_of_the_experiment(around: Around) -> Place:
    return Place(
        lambda number: around.client.set_experiment_tag(around.experiment, f"w{number}", "x"),
        lambda: set(around.client.get_experiment(around.experiment).tags),
    )


@place
def artifacts(around: Around) -> Place:
    """In separate folders, so that these are made at once, too."""

    def write(number: int) -> None:
        for part in ("a", "b"):
            around.client.log_text(around.run, f"{part}{number}", f"w{number}/{part}.txt")

    def read() -> set[str]:
        return {one.path for one in around.client.list_artifacts(around.run)}

    return Place(write, read)


@place
def tags_of_a_logged_model(around: Around) -> Place:
    model = around.model()
    return Place(
        lambda number: around.client.set_logged_model_tags(model, {f"w{number}": "x"}),
        lambda: set(around.client.get_logged_model(model).tags),
    )


@place
def parameters_of_a_logged_model(around: Around) -> Place:
    model = around.model()
    return Place(
        lambda number: around.client.log_model_params(model, {f"w{number}": "x"}),
        lambda: set(around.client.get_logged_model(model).params),
    )


@place
def tags_of_a_logged_model_while_it_is_finished(around: Around) -> Place:
    model = around.model()

    def write(number: int) -> None:
        around.client.set_logged_model_tags(model, {f"w{number}": "x"})
        if number == WRITERS // 2:
            around.client.finalize_logged_model(model, LoggedModelStatus.READY)

    return Place(write, lambda: set(around.client.get_logged_model(model).tags))


@pytest.fixture
def around(tracking: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Around:
    experiment = mlflow.set_experiment(f"overlapping {request.node.name}")
    client = MlflowClient()
    run = client.create_run(experiment.experiment_id)
    return Around(client, run.info.run_id, experiment.experiment_id, tmp_path)


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES.keys())
def test_nothing_is_lost(make: Callable[[Around], Place], around: Around) -> None:
    at = make(around)
    answered: set[str] = set()
    over = threading.Event()
    together = threading.Barrier(WRITERS)

    def write(number: int) -> None:
        together.wait(TIMEOUT_S)
        at.write(number)
        answered.add(f"w{number}")

    def read() -> None:
        while not over.is_set():
            before = set(answered)
            found = at.read()
            assert before <= found, f"answered, and gone: {sorted(before - found)}"

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        reading = pool.submit(read)
        writing = [pool.submit(write, number) for number in range(WRITERS)]
        try:
            for one in writing:
                one.result(TIMEOUT_S)
        finally:
            over.set()
        reading.result(TIMEOUT_S)
    lost = {f"w{number}" for number in range(WRITERS)} - at.read()
    assert lost == set()


def test_uploads_that_overlap_are_all_there(around: Around) -> None:
    """With their contents."""
    names = [f"{folder}/{number}.txt" for folder in ("a", "b/c", "b/d") for number in range(8)]
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda name: around.client.log_text(around.run, name, name), names))
    got = Path(around.client.download_artifacts(around.run, "", str(around.folder)))
    found = [path.relative_to(got).as_posix() for path in got.rglob("*") if path.is_file()]
    assert sorted(found) == sorted(names)
    assert all((got / name).read_text() == name for name in names)


def test_a_model_that_is_finished_several_times_at_once_has_its_files(around: Around) -> None:
    model = around.model()
    names = [f"{number}.txt" for number in range(WRITERS)]
    for name in names:
        (around.folder / name).write_text(name)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(
            pool.map(
                lambda name: around.client.log_model_artifact(model, str(around.folder / name)),
                names,
            )
        )
        ready = LoggedModelStatus.READY
        list(pool.map(lambda _: around.client.finalize_logged_model(model, ready), range(WRITERS)))
    got = around.folder / "got"
    got.mkdir()
    mlflow.artifacts.download_artifacts(f"models:/{model}", dst_path=str(got))
    assert sorted(path.name for path in got.iterdir()) == sorted(names)
    late = around.folder / "late.txt"
    late.write_text("too late")
    with pytest.raises(HTTPError, match="never change"):
        around.client.log_model_artifact(model, str(late))
