"""`det` reports an entrypoint whose file would not be sent, before it submits anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from determined.cli.submission import entrypoint
from determined.experimental import _submission
from tests.unit.cli.conftest import Det
from tests.unit.sdk.fake_service import CONFIG, FakeService

TEXT = """\
name: x
entrypoint: {}
searcher: {{name: single, metric: loss, max_length: {{batches: 1}}}}
"""
FILES = ("src/train.py", "run.sh", "model_def.py", "pkg/__init__.py", "kept_out.py")


def said(tmp_path: Path, words: str, more: str = "", folder: bool = True) -> str | None:
    model = tmp_path / "model"
    for name in FILES:
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text("")
    (model / ".detignore").write_text("kept_out.py")
    config = tmp_path / "c.yaml"
    config.write_text(TEXT.format(words) + more)
    given = model if folder else None
    return entrypoint.missing(_submission.plan(config, given), config, given)


@pytest.mark.parametrize(
    "words",
    [
        "python3 src/train.py --lr 1",
        "python ./src/train.py",
        "[python3, -u, src/train.py]",
        "sh run.sh",
        "model_def:Trial",
        "pkg.inner:Trial",
        "determined.pytorch:Trial",  # installed
        "python3 -m determined.launch.torch_distributed src/train.py",
        "python3 -m determined.launch.torch_distributed --nproc_per_node 2 -- python3 src/train.py",
        "python3 -m determined.launch.horovod --trial model_def:Trial",
        # `det` cannot check this here.
        "python3 -m other",
        "python3 -c 'print(1)'",
        "python3 /opt/train.py",
        "python3 ../train.py",
        "cd src && python3 train.py",
        "python3 $SCRIPT.py",
        "train.py",
        "my-program train.py",
        "python3 'half",
    ],
)
def test_entrypoints_whose_file_may_exist(tmp_path: Path, words: str) -> None:
    assert said(tmp_path, f"'{words}'" if "'" not in words and words[0] != "[" else words) is None


@pytest.mark.parametrize(
    ("words", "wanted", "advice"),
    [
        ("python3 train.py", "train.py", "; there is src/train.py"),
        ("[python3, -u, train.py]", "train.py", "; there is src/train.py"),
        ("bash go.sh", "go.sh", "/model)"),
        (
            "python3 kept_out.py",
            "kept_out.py",
            ": a .detignore, or a rule for every folder, leaves it out",
        ),
        ("model:Trial", "model.py", "/model); did you mean model_def.py?"),
        ("python3 -m determined.launch.torch_distributed -- tain.py", "tain.py", "/model)"),
        ("python3 -m determined.launch.deepspeed --trial=modl:Trial", "modl.py", "/model)"),
        ("bash ran.sh", "ran.sh", "/model); did you mean run.sh?"),
    ],
)
def test_missing_things(tmp_path: Path, words: str, wanted: str, advice: str) -> None:
    found = said(tmp_path, words)
    assert found is not None
    assert found.startswith(
        f"the entrypoint runs {wanted}, which is not among the files that would be sent"
    )
    assert found.endswith(advice)


@pytest.mark.parametrize("words", ["run.sh --lr 1", "[run.sh]"])
def test_a_script_without_its_interpreter(tmp_path: Path, words: str) -> None:
    expected = "the entrypoint runs run.sh, which is a file and no command: write bash run.sh"
    assert said(tmp_path, words) == expected
    assert said(tmp_path, words, "environment: {image: mine}\n") is None


@pytest.mark.parametrize(
    "more",
    ["bind_mounts: [{host_path: /data, container_path: train.py}]\n", None],
    ids=["mount", "hook"],
)
def test_it_may_come_from_a_mount_or_the_hook(tmp_path: Path, more: str | None) -> None:
    if more is None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "startup-hook.sh").write_text("")
    assert said(tmp_path, "python3 train.py", more or "") is None


def test_an_image_may_have_the_module_but_not_the_file(tmp_path: Path) -> None:
    image = "environment: {image: mine}\n"
    assert said(tmp_path, "model:Trial", image) is None
    assert said(tmp_path, "python3 train.py", image) is not None


def test_no_folder_is_given(tmp_path: Path, det: Det, service: FakeService) -> None:
    """`det flow run config.yaml` beside the files."""
    (tmp_path / "train.py").write_text("")
    config = tmp_path / "c.yaml"
    config.write_text(TEXT.format("python3 train.py"))
    words = (
        "the entrypoint runs train.py, which is not among the files that would be sent, as no folder is "
        f"given: write {config} {tmp_path}\n"
    )

    refused = det("flow", "run", config)

    assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", f"error: {words}")
    assert service.calls == []
    assert f"warning: {words}" in det("flow", "run", config, "--dry-run").stderr
    submitted: list[Any] = []
    service.routes.insert(
        0,
        (
            "POST",
            r"/api/v1/experiments",
            lambda request: (
                submitted.append(request) or {"experiment": {"id": 1}, "config": CONFIG}
            ),
        ),
    )
    warned = det("e", "create", config)
    assert f"warning: {words}" in warned.stderr
    assert len(submitted) == 1
