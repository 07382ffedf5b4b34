"""What a notebook shows of experiments and trials."""

from __future__ import annotations

from determined.experimental._notebook_view import table
from determined.experimental.client import Determined
from tests.unit.sdk.fake_service import FakeService, experiment, trial

EVIL = "<script>alert(1)</script>\u202e\x1b[31m"


def test_an_experiment_and_a_trial_link_to_their_pages(
    service: FakeService, client: Determined
) -> None:
    best = {"bestTrialId": 3, "bestTrialSearcherMetric": 0.5, "searcherMetric": "loss"}
    service.experiments[1] = experiment(name=EVIL, reason="the search goes on", **best)
    service.trials[1] = [trial(3, metric=0.5, hparams={EVIL: EVIL})]
    shown = client.get_experiment(1)._repr_html_()
    assert "/det/experiments/1" in shown
    for words in ("running", "the search goes on", "<th>best loss</th><td>0.5</td>"):
        assert words in shown
    of_trial = client.get_trial(3)._repr_html_()
    assert "/det/trials/3" in of_trial
    for text in (shown, of_trial):
        assert "<script>" not in text and "&lt;script&gt;" in text
        assert "\u202e" not in text and "\x1b" not in text


def test_long_texts_are_cut() -> None:
    shown = table("x" * 10_000, "http://host/", {"a": "y" * 10_000, "b": None})
    assert len(shown) < 1500
    assert "<th>b</th>" not in shown
