"""A trial that trained on one slot goes on with two: the same records in the same steps."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

from tests.local_cluster import LocalCluster

CONFIG = """
name: more-slots
entrypoint: model_def:Listed
hyperparameters: {global_batch_size: 10}
searcher: {name: single, metric: loss, smaller_is_better: true, max_length: {batches: %d}}
scheduling_unit: 5
min_validation_period: {batches: 0}
reproducibility: {experiment_seed: 5}
max_restarts: 0
"""

# 60 records, shuffled: six global batches of 10 an epoch, with two slots 5 for each.
MODEL = """
import json
import torch
from determined import pytorch


class Listed(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.001))

    def _loader(self, **options):
        data = torch.utils.data.TensorDataset(torch.arange(60, dtype=torch.float32))
        return pytorch.DataLoader(data, self.context.get_per_slot_batch_size(), **options)

    def build_training_data_loader(self):
        return self._loader(shuffle=True)

    def build_validation_data_loader(self):
        return self._loader()

    def train_batch(self, batch, epoch_idx, batch_idx):
        (values,) = batch
        print("step", json.dumps([batch_idx, values.int().tolist()]), flush=True)
        loss = self.model(values[:, None] / 100).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        return {"loss": self.model(batch[0][:, None]).mean()}
"""


def steps(cluster: LocalCluster, experiment: int) -> dict[int, list[list[int]]]:
    """By step, the records of each process that made it."""
    found = defaultdict(list)
    for line in re.findall(r"step (\[.*\])", cluster.logs(experiment)):
        number, records = json.loads(line)
        found[number].append(records)
    return dict(found)


def test_one_slot_then_two(cluster: LocalCluster, tmp_path: Path) -> None:
    unbroken = cluster.submit(tmp_path / "unbroken", CONFIG % 20, model_def_py=MODEL)
    changed = cluster.submit(tmp_path / "changed", CONFIG % 10, model_def_py=MODEL)
    for experiment in (unbroken, changed):
        assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
    change = ["resources.slots_per_trial=2", "searcher.max_length.batches=20"]
    options = [word for one in change for word in ("--config", one)]
    cluster.det("experiment", "continue", str(changed), *options)
    assert cluster.wait(changed) == "COMPLETED", cluster.logs(changed)
    (trial,) = cluster.trials(changed)
    assert trial["totalBatchesProcessed"] == 20

    expected, seen = steps(cluster, unbroken), steps(cluster, changed)
    assert sorted(seen) == sorted(expected) == list(range(20))  # none twice, none left out
    for number in range(20):
        (whole,) = expected[number]
        shares = seen[number]
        assert [len(share) for share in shares] == ([10] if number < 10 else [5, 5])
        # Which process' line comes first is chance.
        assert shares in ([whole], [whole[:5], whole[5:]], [whole[5:], whole[:5]])
