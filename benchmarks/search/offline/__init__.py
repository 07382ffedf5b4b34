"""Search quality without training anything: every tool on the same tasks, in simulated time.

    python -m benchmarks.search.offline [--quick]

`tasks` are functions of a configuration and an epoch, `simulator` gives a tool W virtual workers,
`ours` and `peers` drive the tools, `plan` says who runs what, `statistics` and `report` judge.
The peers run in their own interpreter (PEER_PYTHON). Results: docs/inside/search-quality.md.
"""


def main() -> None:
    """The quick form, for `python -m benchmarks`."""
    from benchmarks.search.offline.__main__ import run

    run(["--quick"])
