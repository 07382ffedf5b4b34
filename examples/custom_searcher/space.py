"""The search of this example, shared by run_local.py and run_remote.py."""

from asha import ASHA


def sample(rng):
    """One setting for examples/digits/train.py."""
    return {
        "learning_rate": 10 ** rng.uniform(-4, -1),
        "hidden_size": rng.randint(16, 128),
        "batch_size": rng.choice([16, 32, 64]),
        "dropout": rng.uniform(0.0, 0.5),
    }


def search_method():
    """Nine trials; all train 1 epoch, the best three 3, the best of them 9."""
    return ASHA(sample, max_trials=9, max_length=9, num_rungs=3, divisor=3, concurrent=2, seed=7)
