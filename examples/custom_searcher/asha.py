"""Asynchronous successive halving (ASHA), written as a custom search method.

Every trial trains a little. Whenever a place is free, a trial in the top 1/divisor of its rung goes on to
the next rung; if there is none, a new trial starts at the bottom. `save_method_state` saves everything that
the decisions depend on, including the random generator, so a killed search goes on as if nothing had
happened.
"""

import json
import logging
import math
import random
import uuid

from determined import searcher


class ASHA(searcher.SearchMethod):
    """Maximises the metric. Rung i trains to `max_length / divisor**(num_rungs - 1 - i)` units."""

    def __init__(
        self, sample, max_trials, max_length, num_rungs=3, divisor=3, concurrent=2, seed=0
    ):
        super().__init__()
        self.sample = sample  # random.Random -> hyperparameters
        self.max_trials = max_trials
        self.divisor = divisor
        self.concurrent = concurrent  # trials that train at a time: no more than there are slots
        self.lengths = [
            max(int(max_length / divisor ** (num_rungs - 1 - rung)), 1) for rung in range(num_rungs)
        ]
        self.random = random.Random(seed)
        self.created = 0
        self.training = set()  # trials with a target they have not reached
        self.waiting = set()  # trials that may be promoted
        self.rungs = [{} for _ in self.lengths]  # trial -> metric
        self.promoted = [set() for _ in self.lengths]

    # What happens.

    def initial_operations(self, state):
        return self.fill()

    def on_trial_created(self, state, request_id):
        return []

    def on_validation_completed(self, state, request_id, metric, train_length):
        rung = self.lengths.index(train_length)
        self.rungs[rung][str(request_id)] = -math.inf if math.isnan(metric) else metric
        self.training.discard(str(request_id))
        logging.info("trial %s: %.4f after %d", request_id, metric, train_length)
        if rung == len(self.lengths) - 1:
            return [searcher.Close(request_id), *self.fill()]
        self.waiting.add(str(request_id))
        return self.fill()

    def on_trial_exited_early(self, state, request_id, exited_reason):
        if exited_reason == searcher.ExitedReason.INVALID_HP:
            self.created -= 1  # it does not count: another sample takes its place
        self.training.discard(str(request_id))
        self.waiting.discard(str(request_id))
        return self.fill()

    def on_trial_closed(self, state, request_id):
        everyone_closed = state.trials_closed >= state.trials_created
        if everyone_closed and self.created >= self.max_trials and not self.training:
            return [searcher.Shutdown()]
        return []

    def progress(self, state):
        return min(len(state.trials_closed) / self.max_trials, 1.0)

    # What follows.

    def fill(self):
        """Operations for the free places. When no trial can go on any more, the waiting trials are closed."""
        operations = []
        while len(self.training) < self.concurrent:
            more = self.promote() or self.start()
            if not more:
                break
            operations += more
        if not self.training:
            operations += [searcher.Close(uuid.UUID(trial)) for trial in sorted(self.waiting)]
            self.waiting.clear()
        return operations

    def promote(self):
        for rung in reversed(range(len(self.lengths) - 1)):
            done = self.rungs[rung]
            best = sorted(done, key=done.get, reverse=True)[: len(done) // self.divisor]
            for trial in best:
                if trial in self.waiting and trial not in self.promoted[rung]:
                    self.promoted[rung].add(trial)
                    self.waiting.discard(trial)
                    self.training.add(trial)
                    return [searcher.ValidateAfter(uuid.UUID(trial), self.lengths[rung + 1])]
        return []

    def start(self):
        if self.created >= self.max_trials:
            return []
        self.created += 1
        hparams = self.sample(self.random)
        request_id = uuid.UUID(int=self.random.getrandbits(128), version=4)
        self.training.add(str(request_id))
        return [
            searcher.Create(request_id=request_id, hparams=hparams, checkpoint=None),
            searcher.ValidateAfter(request_id=request_id, length=self.lengths[0]),
        ]

    # What a restart needs.

    def save_method_state(self, path):
        state = {
            "random": self.random.getstate(),
            "created": self.created,
            "training": sorted(self.training),
            "waiting": sorted(self.waiting),
            "rungs": self.rungs,
            "promoted": [sorted(trials) for trials in self.promoted],
        }
        (path / "asha.json").write_text(json.dumps(state))

    def load_method_state(self, path):
        state = json.loads((path / "asha.json").read_text())
        version, words, gauss = state["random"]
        self.random.setstate((version, tuple(words), gauss))
        self.created = state["created"]
        self.training = set(state["training"])
        self.waiting = set(state["waiting"])
        self.rungs = state["rungs"]
        self.promoted = [set(trials) for trials in state["promoted"]]
