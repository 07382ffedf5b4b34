"""Models through the SDK and through `det`, with a real service, and files in a directory."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import types
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from determined.cli.root import app
from determined.common.api.errors import (
    APIException,
    BadRequestException,
    ForbiddenException,
    NotFoundException,
)
from determined.experimental import Determined, ModelSortBy, OrderBy
from determined_registry.database.tables import checkpoints, metrics, trial_sources
from determined_service.base.db import Database
from tests.integration.service_api.world import SEARCHER, World


@dataclass(frozen=True)
class Trained:
    """Two trials of one experiment, `lr` 0.1 and 0.2, and a checkpoint of each."""

    experiment_id: int
    trials: list[int]
    checkpoints: list[str]


@pytest.fixture
def trained(service_url: str, database_url: str, tmp_path: Path) -> Trained:
    return asyncio.run(make_rows(database_url, tmp_path / "checkpoints"))


async def make_rows(database_url: str, storage: Path) -> Trained:
    db = Database(database_url)
    world = World(cast(FastAPI, types.SimpleNamespace(state=types.SimpleNamespace(db=db))))
    section = {"type": "shared_fs", "host_path": str(storage)}
    config = {"searcher": SEARCHER, "checkpoint_storage": section, "data": {"version": "v3"}}
    experiment_id = await world.experiment("digits", config=config, state="COMPLETED")
    made = Trained(experiment_id, [], [])
    for number in (1, 2):
        trial_id, _ = await world.trial(
            experiment_id, hparams={"lr": number / 10, "net": {"depth": 3}}, state="COMPLETED"
        )
        name = uuid.uuid4()
        (storage / str(name)).mkdir(parents=True)
        (storage / str(name) / "weights").write_text(f"{number}")
        loss = {"loss": 0.5 / number, "accuracy": 0.5}
        async with db.tx() as conn:
            await conn.execute(
                sa.insert(checkpoints).values(
                    uuid=name,
                    state="COMPLETED",
                    experiment_id=experiment_id,
                    trial_id=trial_id,
                    steps_completed=10,
                    resources={"weights": 1},
                    user_metadata={"steps_completed": 10},
                )
            )
            await conn.execute(
                sa.insert(metrics).values(
                    trial_id=trial_id,
                    run_id=1,
                    group_name="validation",
                    steps_completed=10,
                    end_time=sa.func.now(),
                    metrics=loss,
                )
            )
        made.trials.append(trial_id)
        made.checkpoints.append(str(name))
    await db.close()
    return made


async def say_that_it_uses(database_url: str, trained: Trained, model_id: int) -> None:
    db = Database(database_url)
    async with db.tx() as conn:
        await conn.execute(
            sa.insert(trial_sources).values(
                trial_id=trained.trials[1],
                checkpoint_uuid=uuid.UUID(trained.checkpoints[0]),
                kind="INFERENCE",
                model_id=model_id,
                model_version=1,
            )
        )
    await db.close()


def test_metadata_that_is_added_at_the_same_moment(own: Determined, trained: Trained) -> None:
    """By sixteen who have read it before."""
    model = own.create_model("noted by many")
    things = [
        (model, [own.get_model("noted by many") for _ in range(16)]),
        (
            own.get_checkpoint(trained.checkpoints[0]),
            [own.get_checkpoint(trained.checkpoints[0]) for _ in range(16)],
        ),
    ]
    for thing, writers in things:
        with ThreadPoolExecutor(len(writers)) as pool:
            list(pool.map(lambda at: at[1].add_metadata({f"w{at[0]}": 1}), enumerate(writers)))
        thing.reload()
        assert {f"w{number}" for number in range(16)} <= (thing.metadata or {}).keys()


def test_the_sdk(own: Determined, trained: Trained, database_url: str, tmp_path: Path) -> None:
    first, second = trained.checkpoints
    model = own.create_model("hand written", "digits", {"a": 1}, ["x"], "Uncategorized")
    assert (model.description, model.metadata, model.labels) == ("digits", {"a": 1}, ["x"])
    assert (model.username, model.archived, model.workspace_id) == ("determined", False, 1)
    assert model.get_version() is None
    assert model.register_version(first).model_version == 1
    assert model.register_version(second).model_version == 2
    with pytest.raises(NotFoundException, match="does not exist"):
        model.register_version(str(uuid.uuid4()))
    newest = model.get_version()
    assert newest is not None
    assert (newest.model_version, newest.model_name) == (2, "hand written")
    assert [one.model_version for one in model.list_versions()] == [2, 1]
    assert [one.model_version for one in model.get_versions(OrderBy.ASC)] == [1, 2]

    model.add_metadata({"b": [1]})
    model.remove_metadata(["a", "none"])
    model.set_labels(["y", "z"])
    model.set_description("written by hand")
    model.set_notes("# notes")
    model.set_tags({"stage": "new", "team": "a"})
    model.set_tags({"team": None})
    found = own.get_model("Hand Written")
    assert (found.metadata, found.labels, found.description, found.notes, found.tags) == (
        {"b": [1]},
        ["y", "z"],
        "written by hand",
        "# notes",
        {"stage": "new"},
    )
    model_id = found.model_id
    assert model_id is not None
    assert own.get_model(model_id).name == own.get_model_by_id(model_id).name == "hand written"
    assert sorted(own.get_model_labels()) == ["y", "z"]

    assert model.set_alias("champion", 1) is None
    assert model.set_alias("champion", 2) == 1
    assert model.aliases == own.get_model(model_id).aliases == {"champion": 2}
    champion = model.get_version("champion")
    assert champion is not None
    assert (champion.model_version, champion.aliases) == (2, ["champion"])
    moves = [(one.alias, one.from_version, one.to_version) for one in model.alias_history()]
    assert moves == [("champion", None, 1), ("champion", 1, 2)]
    with pytest.raises(BadRequestException, match="names a version by its number"):
        model.set_alias("v1", 1)

    champion.set_name("best")
    champion.set_comment("of two")
    champion.set_notes("# why")
    champion.set_labels(["l"])
    champion.set_metadata({"m": 1})
    champion.set_tags({"k": "v"})
    again = model.get_version(2)
    assert again is not None
    assert (again.name, again.comment, again.notes, again.labels, again.metadata, again.tags) == (
        "best",
        "of two",
        "# why",
        ["l"],
        {"m": 1},
        {"k": "v"},
    )
    assert again.lineage["experimentId"] == trained.experiment_id
    assert again.lineage["data"] == {"version": "v3"}
    assert again.checkpoint is not None
    assert again.checkpoint.training is not None
    assert again.checkpoint.training.hparams == {"lr": 0.2, "net": {"depth": 3}}
    folder = again.download(str(tmp_path / "best"))
    assert (Path(folder) / "weights").read_text() == "2"

    asyncio.run(say_that_it_uses(database_url, trained, model_id))
    one = model.get_version(1)
    assert one is not None
    assert [report.metrics for report in one.get_metrics("validation")] == [
        {"loss": 0.25, "accuracy": 0.5}
    ]
    assert list(one.iter_metrics("other")) == []

    with pytest.raises(APIException, match="is version 2 of model 'hand written'"):
        again.checkpoint.delete()
    model.archive()
    with pytest.raises(APIException, match="is archived"):
        model.set_labels([])
    assert own.get_model(model_id).archived
    model.unarchive()
    with pytest.raises(NotFoundException, match="there is no workspace 'other'"):
        model.move_to_workspace("other")
    own.create_model("a")
    assert [one.name for one in own.list_models()] == ["a", "hand written"]
    by_versions = own.get_models(sort_by=ModelSortBy.NUM_VERSIONS, order_by=OrderBy.DESC, name="n")
    assert [one.name for one in by_versions] == ["hand written"]
    with pytest.raises(APIException, match="there is a model 'a' already"):
        model.set_name("A")
    model.set_name("digits")
    assert model.delete_alias("champion") == 2
    again.delete()
    model.reload()
    assert (model.name, model.num_versions, model.aliases) == ("digits", 1, {})
    assert model.register_version(first).model_version == 3
    model.delete()
    with pytest.raises(NotFoundException):
        own.get_model("digits")
    assert isinstance(again.checkpoint.delete(), int)


def test_whose_models_they_are(own: Determined, trained: Trained, service_url: str) -> None:
    admin = Determined(service_url, "admin", "")
    admin.create_user("ann", admin=False, password="secret")
    ann = Determined(service_url, "ann", "secret")
    model = own.create_model("digits")
    model.register_version(trained.checkpoints[0])
    seen = ann.get_model("digits")
    version = seen.get_version()
    assert version is not None
    for attempt in (
        lambda: seen.register_version(trained.checkpoints[0]),
        lambda: seen.set_alias("champion", 1),
        lambda: seen.set_labels(["x"]),
        version.delete,
        seen.delete,
    ):
        with pytest.raises(ForbiddenException, match="only its owner determined"):
            attempt()
    # Registering somebody else's checkpoint would keep its owner from deleting it.
    with pytest.raises(ForbiddenException, match=r"only its owner .* may register check"):
        ann.create_model("mine").register_version(trained.checkpoints[0])
    admin.get_model("digits").set_alias("champion", 1)
    assert [move.username for move in model.alias_history()] == ["admin"]


def det(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def said(*args: object) -> str:
    result = det(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(*args: object) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(said(*args, "--csv"))))


def test_det(own: Determined, trained: Trained, tmp_path: Path) -> None:
    first, second = trained.checkpoints
    made = json.loads(said("model", "create", "digits", "--description", "hand", "--json"))
    assert (made["name"], made["description"]) == ("digits", "hand")
    assert "it has no versions yet" in det("m", "describe", "digits").stderr
    assert "determined" in said("m", "create", "b")
    for name in (first, second):
        said("m", "register-version", "digits", name)
    assert "stands for version 1" in det("m", "alias", "set", "digits", "champion", 1).stderr
    moved = det("m", "alias", "set", "digits", "champion", 2).stderr
    assert "stands for version 2, no longer for version 1" in moved
    assert "still stands for version 2" in det("m", "al", "set", "digits", "champion", 2).stderr

    listed = rows("m", "list", "--sort-by", "name", "--order-by", "desc")
    assert [(row["Name"], row["Versions"], row["Aliases"]) for row in listed] == [
        ("digits", "2", "champion: 2"),
        ("b", "0", ""),
    ]
    assert [one["name"] for one in json.loads(said("m", "ls", "--json"))] == ["b", "digits"]
    assert "digits" in said("m")
    assert det("m", "list", "-w", "other").exit_code == 1
    assert rows("m", "list", "-w", "Uncategorized") != []

    versions = rows("m", "list-versions", "digits")
    assert [(row["Version"], row["Aliases"], row["Checkpoint UUID"]) for row in versions] == [
        ("2", "champion", second),
        ("1", "", first),
    ]
    document = json.loads(said("m", "list-versions", "digits", "--json"))
    assert [one["version"] for one in document["modelVersions"]] == [2, 1]

    shown = said("m", "describe", "digits", "--version", "champion")
    for part in (second, "lr=0.2 net.depth=3", '{"version":"v3"}', "Lineage", "champion: 2"):
        assert part in shown
    assert f"{trained.trials[0]}" in said("m", "describe", "digits", "--version", 1)
    found = json.loads(said("m", "describe", "digits", "--json"))
    assert (found["name"], found["modelVersion"]["version"]) == ("digits", 2)

    compared = said("m", "diff", "digits", 1, "champion")
    lines = [" ".join(line.split()) for line in compared.splitlines()]
    assert "Name Version 1 Version 2 Change" in lines
    assert "lr 0.1 0.2 +0.1" in lines
    assert "validation.loss 0.5 0.25 -0.25" in lines
    assert not any("accuracy" in line or "depth" in line for line in lines)
    found = json.loads(said("m", "diff", "digits", 1, 2, "--json"))
    assert found["versions"] == [1, 2]
    assert found["configuration"] == []
    assert "are the same version" in det("m", "diff", "digits", 2, "champion").stderr
    assert "no alias 'none'" in det("m", "diff", "digits", 2, "none").stderr

    for mode in ("direct", "master"):
        folder = tmp_path / mode
        said("m", "download", "digits", "@champion", "-o", folder, "--mode", mode)
        assert (folder / "weights").read_text() == "2"
    assert "no versions yet" in det("m", "download", "b").stderr

    history = rows("m", "alias", "history", "digits", "champion")
    assert [(row["From Version"], row["To Version"], row["Moved By"]) for row in history] == [
        ("", "1", "determined"),
        ("1", "2", "determined"),
    ]
    refused = det("e", "delete", trained.experiment_id, "--yes")
    assert refused.exit_code == 1
    assert "is version 1 of model 'digits'" in refused.stderr
    assert "det model delete-version 'digits' 1" in refused.stderr
    assert det("m", "move", "digits", "-w", "other").exit_code == 1
    said("m", "move", "digits", "-w", "Uncategorized")
    for verb in ("archive", "unarchive"):
        said("m", verb, "digits")
    said("m", "alias", "delete", "digits", "champion")
    said("m", "delete-version", "digits", 2)
    said("m", "delete", "digits")
    missing = det("m", "describe", "digits")
    assert (missing.exit_code, "model 'digits' does not exist" in missing.stderr) == (1, True)
