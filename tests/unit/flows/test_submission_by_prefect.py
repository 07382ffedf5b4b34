"""A configuration given to Prefect's "Custom run"."""

from __future__ import annotations

import logging

import pytest

from determined_flows import experiment


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("checkpoint_storage: {type: s3, bucket: b, secret_key: a-key-of-mine}", True),
        ("environment: {environment_variables: [GH_PAT=a-token-of-mine]}", True),
        ("environment: {environment_variables: [OMP_NUM_THREADS=2]}", False),
        ("hyperparameters: {lr: 0.1}", False),
        ("{", False),
        ("7", False),
    ],
)
def test_secrets_among_parameters_are_warned_of(
    text: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(experiment, "get_run_logger", lambda: logging.getLogger("run"))
    experiment._warn_of_secrets(text)
    assert ("Prefect keeps and shows the parameters" in caplog.text) is warned
    assert "of-mine" not in caplog.text
