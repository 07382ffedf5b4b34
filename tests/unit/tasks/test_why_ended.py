"""The reason why a process ended, from its and its workers' output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from determined_tasks.log_lines import parse
from determined_tasks.why_ended import MAX_LINES_BETWEEN, MAX_RANKS, WhyEnded

FAILING = [
    b"Traceback (most recent call last):",
    b'  File "train.py", line 4, in <module>',
    b"    raise ValueError(word)",
    b"ValueError: no luck",
]
LATER = [
    b"Traceback (most recent call last):",
    b'  File "train.py", line 9, in <module>',
    b"    gather()",
    b"KeyError: 'lr'",
]
LOST = [*LATER[:3], b"RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:29353"]
LAUNCHER = [b"Traceback (most recent call last):", b"launch.ChildFailedError: "]
RANK_1 = "rank 1: ValueError: no luck (train.py, line 4: raise ValueError(word))"


def why(*lines: bytes, stream: str = "stderr") -> str | None:
    found = WhyEnded()
    for line in lines:
        found.feed(parse(line + b"\n"), stream)
    return found.text


def of_rank(rank: int, lines: list[bytes]) -> list[bytes]:
    return [b"[rank=%d] " % rank + line for line in lines]


@pytest.mark.parametrize(
    "before",
    [
        *(b"[rank=1] ", b"[rank1]: ", b"[rank=1] [rank1]: ", b"[default0]:[rank1]: "),
        *(b"[1]<stderr>:[rank=1] ", b"[1,1]<stderr>:", b"[1,1]<stderr>: "),
    ],
)
def test_prefixes_of_launchers_and_torch(before: bytes) -> None:
    assert why(*(before + line for line in FAILING)) == RANK_1


def test_lines_of_several_ranks_are_mixed() -> None:
    mixed = [b"[rank=1] " + FAILING[0]]
    for first, second in zip(FAILING[1:], LATER, strict=False):
        mixed += [b"[rank=0] " + second, b"[rank=1] " + first]
    # The first error, not its consequence in rank 0, nor the launcher's messages about both.
    assert why(*mixed, b"[rank=0] " + LATER[-1], *LAUNCHER) == RANK_1


def test_a_rank_that_lost_another_one_is_not_the_reason() -> None:
    assert why(*of_rank(0, LOST), *of_rank(1, FAILING), *LAUNCHER) == RANK_1
    assert (why(*of_rank(0, LOST), *LAUNCHER) or "").startswith("rank 0: RuntimeError: [pair")
    ended = b"determined.launch: rank 0 ended with exit code 1, ending the others"
    assert why(*of_rank(0, LOST), ended, *of_rank(1, FAILING)) == RANK_1


@pytest.mark.parametrize(
    "words", ["Connection closed by peer", "Gloo connectFullMesh failed with [pair.cc]"]
)
def test_a_rank_that_left_with_a_line_is_the_reason_also_where_it_ended_last(words: str) -> None:
    lost = of_rank(0, [*LATER[:3], b"RuntimeError: " + words.encode()])
    left = of_rank(1, [b"no data"])
    ended = b"determined.launch: rank 0 ended with exit code 1, ending the others"
    for order in ([*left, *lost], [*lost, *left]):
        assert why(*order, ended) == "rank 1: last line of stderr: no data"
    # If two processes printed something, the cause of the end is unknown.
    assert (why(*lost, *left, *of_rank(2, [b"epoch 1"]), ended) or "").startswith("rank 0: Runtime")


TORCHRUN = [
    *LAUNCHER,
    b"Failures:",
    b"  rank      : 0 (local_rank: 0)",
    b"Root Cause (first observed failure):",
    b"  rank      : 1 (local_rank: 1)",
]


@pytest.mark.parametrize(
    "launcher",
    [[b"determined.launch: rank 1 ended with exit code 1, ending the others"], TORCHRUN],
    ids=["determined.launch", "torchrun"],
)
def test_the_launcher_finds_the_first_failure(launcher: list[bytes]) -> None:
    assert why(*of_rank(0, LATER), *of_rank(1, FAILING), *launcher) == RANK_1
    found = why(*of_rank(0, LATER), *of_rank(1, [b"no data for this rank"]), *launcher)
    assert found == "rank 1: last line of stderr: no data for this rank"


def test_torchrun_names_the_rank_of_workers_without_a_process_group() -> None:
    assert why(*FAILING, *TORCHRUN) == RANK_1


def test_several_exceptions_without_a_rank_have_no_last_one() -> None:
    seen = "; torchrun saw rank 1 fail first"
    assert why(*FAILING, *LATER, *TORCHRUN) == f"KeyError: 'lr' (train.py, line 9: gather()){seen}"
    # torchrun may see the end of who lost another worker before the end of that one.
    lost = [*LATER[:3], b"determined.errors.WorkerLost: the worker of rank 0 is gone"]
    assert why(*FAILING, *lost, *TORCHRUN) == RANK_1.removeprefix("rank 1: ") + seen


def test_without_an_exception_of_a_rank_the_launchers_counts() -> None:
    assert why(b"[rank=0] epoch 1", *LAUNCHER) == "launch.ChildFailedError:"


def test_ranks_that_a_script_makes_up_take_no_memory() -> None:
    found = WhyEnded()
    for rank in range(2 * MAX_RANKS):
        found.feed(parse(b"[rank=%d] hello\n" % rank), "stderr")
    assert len(found._processes) <= MAX_RANKS + 1


RAISE = "def f():\n    raise ValueError('the real reason')\n"
REASON = "ValueError: the real reason (train.py, line 2: raise ValueError('the real reason'))"
NOISE = "import sys\nfor n in range({}):\n    print('line', n, file=sys.stderr)\n"
PRINTED = {
    "stdout": (
        f"{RAISE}import sys, traceback\ntry:\n    f()\nexcept Exception:\n"
        "    traceback.print_exc(file=sys.stdout)\n    sys.exit(1)",
        REASON,
    ),
    "logged": (
        f"{RAISE}import logging, sys\ntry:\n    f()\nexcept Exception:\n"
        "    logging.exception('training failed')\n    sys.exit(3)",
        REASON,
    ),
    "words": ("raise SystemExit('no data:\\n  none')", "last line of stderr: no data:"),
    "argparse": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', required=True)\n"
        "p.parse_args([])",
        "last line of stderr: train.py: error: the following arguments are required: --lr",
    ),
    "click": (
        "import click\n@click.command()\n@click.option('--lr', required=True)\ndef main(lr): pass\n"
        "main()",
        "last line of stderr: Error: Missing option '--lr'.",
    ),
    "a frame": (
        "import sys\nprint('╭─ Error ─╮\\n│ Missing option --lr │\\n╰─────────╯', file=sys.stderr)\n"
        "sys.exit(2)",
        "last line of stderr: Missing option --lr",
    ),
    "atexit": (
        f"{RAISE}import atexit\natexit.register(lambda: exec({NOISE.format(30)!r}))\nf()",
        f"{REASON}, 30 lines before the end; last line of stderr: line 29",
    ),
    "too long ago": (
        f"{RAISE}import traceback\ntry:\n    f()\nexcept Exception:\n    traceback.print_exc()\n"
        f"{NOISE.format(MAX_LINES_BETWEEN + 1)}sys.exit('no data')",
        "last line of stderr: no data",
    ),
    "noise": (
        "import sys, warnings\nprint('no data', file=sys.stderr)\n"
        "warnings.warn('old')\nprint(' 50%|##  | 1/2\\r100%|####| 2/2', file=sys.stderr)\n"
        "print('INFO: [7] root: hello', file=sys.stderr)\nsys.exit(1)",
        "last line of stderr: no data",
    ),
    "env": (
        r"""import sys
sys.exit("env: 'bash\\r': No such file or directory\nenv: use -[v]S to pass options in shebang lines")""",
        r"last line of stderr: env: 'bash\r': No such file or directory",
    ),
    "subprocess": (
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'raise KeyError'], check=True)",
        "subprocess.CalledProcessError: Command '[",
    ),
    "multiprocessing": (
        f"{RAISE}import multiprocessing\nwith multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "    pool.apply(f)",
        "ValueError: the real reason (train.py, line 5: pool.apply(f))",
    ),
    "silent": ("raise SystemExit(1)", None),
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_last_output_of_programs(tmp_path: Path, name: str) -> None:
    code, expected = PRINTED[name]
    (tmp_path / "train.py").write_text(code)
    done = subprocess.run([sys.executable, "train.py"], capture_output=True, cwd=tmp_path)
    assert done.returncode not in (0, -1)
    found = WhyEnded(tmp_path)
    for stream, printed in (("stdout", done.stdout), ("stderr", done.stderr)):
        for line in printed.splitlines(keepends=True):
            found.feed(parse(line), stream)
    if expected is None:
        assert found.text is None
    else:
        assert found.text is not None and found.text.startswith(expected), done.stderr.decode()
        assert found.text == expected or name == "subprocess"
