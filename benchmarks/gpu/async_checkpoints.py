"""A checkpoint that nobody waits for, on a GPU: ``python -m benchmarks.gpu.async_checkpoints``.

First whether it is right: trainings on the GPU, resumed from asynchronous checkpoints of several steps, must
have the losses of the unbroken one bit for bit (deterministic algorithms). Then what it costs, for 4.3 GB:
the loop should stand still for 0.3 s, and the checkpoint be durable no later than by torch.save and fsync.
It takes some minutes (``--gigabytes 1``: less), no network, and twice the state in memory. Without a GPU it
says so.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.async_checkpoints import measure, process_group, report
from determined.core._checkpoint import DummyCheckpointContext
from determined.core._distributed import DummyDistributedContext
from determined.storage import build

GOAL_S = 0.3
STEPS = 12


def _made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    # A batch norm: its averages are changed by the next forward pass, before any optimizer step.
    layers = [torch.nn.Linear(2048, 2048), torch.nn.BatchNorm1d(2048), torch.nn.Dropout(0.3)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(2048, 2048)).cuda()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(number)
    inputs = torch.randn(256, 2048, device="cuda", generator=generator)
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def check_exact(folder: Path) -> None:
    """Raises SystemExit when a resumed training has other losses than the unbroken one."""
    section = {"type": "directory", "container_path": str(folder)}
    checkpoint = DummyCheckpointContext(DummyDistributedContext(), build(section))
    model, optimizer = _made()
    losses, uuids = [], {}
    for number in range(STEPS):
        if number % 4 == 2:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": torch.cuda.get_rng_state(),
            }
            # Nothing waits for the device here: the kernels of the next steps are queued behind the copies.
            uuids[number] = checkpoint.save_state(state)
        losses.append(_step(model, optimizer, number))
    expected = [loss.item().hex() for loss in losses]
    checkpoint.wait()
    for begin, uuid in uuids.items():
        model, optimizer = _made()
        with checkpoint.restore_path(str(uuid)) as path:
            state: dict[str, Any] = torch.load(path / "state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.cuda.set_rng_state(state["random"])
        found = [_step(model, optimizer, number).item().hex() for number in range(begin, STEPS)]
        if found != expected[begin:]:
            raise SystemExit(f"resumed at step {begin}: {found} instead of {expected[begin:]}")
    checkpoint._close()
    print(
        f"resumed at steps {', '.join(map(str, uuids))}: the same losses, bit for bit", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=4.3)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(
            "there is no GPU here; for CPUs: python -m benchmarks.training.async_checkpoints"
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}", flush=True)
    with process_group(), tempfile.TemporaryDirectory() as name:
        check_exact(Path(name) / "exact")
        medians = report(measure(options.gigabytes, options.rounds, "cuda", Path(name)))
    still, durable = medians["save_state"]
    by_hand = medians["torch.save + fsync"][1]
    if still > GOAL_S * options.gigabytes / 4.3 or durable > by_hand:
        raise SystemExit(
            f"the goals are {GOAL_S} s for 4.3 GB, and durable within {by_hand:.1f} s: found {still:.3f} and "
            f"{durable:.1f}"
        )


if __name__ == "__main__":
    main()
