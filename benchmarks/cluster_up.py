"""Seconds for `cluster-up` from nothing, and again with the data of the first time."""

from __future__ import annotations

import subprocess

from benchmarks.cluster import DET, data_dir, up


def main() -> None:
    with data_dir() as env:
        first = up(env)
        noop = up(env)
        subprocess.run(
            [*DET, "deploy", "local", "cluster-down"], env=env, capture_output=True, check=True
        )
        again = up(env)
    print(f"cluster-up from nothing {first:.1f} s, already up {noop:.1f} s, again {again:.1f} s")


if __name__ == "__main__":
    main()
