"""A trial's first step when another trial has compiled the same: ``python -m benchmarks.gpu.compiled_again``.

The same script four times: by itself with empty caches and again with full ones, then as the first leg and as
the next leg of one experiment, by the supervisor that an agent starts. The next leg's first step should take
at most 1.3 times that of the second run by itself. Without a GPU it compiles for the CPU, which takes a C++
compiler and Python's header files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from determined_tasks import compiled_code
from tests.programs.legs.conftest import LegRunner
from tests.programs.legs.fake_service import FakeService

GOAL = 1.3
_SCRIPT = """
import time
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
model = torch.compile(nn.TransformerEncoder(layer, 4).to(device))
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(8, 64, 256, device=device)
torch.zeros(1, device=device).item()  # what the device's first use costs is not asked for
began = time.perf_counter()
model(batch).square().mean().backward()
optimizer.step()
if device == "cuda":
    torch.cuda.synchronize()
print("first step", time.perf_counter() - began)
"""


def _seconds(output: str, errors: str) -> float:
    found = [line for line in output.splitlines() if line.startswith("first step")]
    if not found:
        raise SystemExit(errors[-2000:] or "the script printed nothing")
    return float(found[-1].split()[-1])


def _bare(folder: Path) -> float:
    env = {**os.environ, **compiled_code.variables(folder / "caches")}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=env, cwd=folder, capture_output=True, text=True
    )
    return _seconds(done.stdout, done.stderr)


def _leg(legs: LegRunner, number: int) -> float:
    process = legs.start(
        {"train.py": _SCRIPT},
        place={"compiled_bytes": 16 << 30},
        allocation_id=f"7.abc.{number}",
        trial_id=number,
    )
    process.wait()
    return _seconds(legs.service.text("stdout"), legs.service.text("stderr"))


def main() -> None:
    """Prints a line for each run. Raises SystemExit when the next leg is slower than the goal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cold, warm = _bare(folder), _bare(folder)
        print(f"by itself: {cold:.2f} s with empty caches, {warm:.2f} s with full ones", flush=True)
        service = FakeService()
        legs = LegRunner(service, folder / "agent")
        try:
            first, following = _leg(legs, 1), _leg(legs, 2)
        finally:
            legs.close()
            service.close()
    ratio = following / warm
    print(
        f"legs: {first:.2f} s the first one, {following:.2f} s the next one ({ratio:.2f} of warm)"
    )
    if ratio > GOAL:
        raise SystemExit(f"the next leg's first step should take {GOAL} of a warm run at most")


if __name__ == "__main__":
    main()
