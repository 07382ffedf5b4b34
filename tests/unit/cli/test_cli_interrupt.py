"""Ctrl-C once, twice, and again when the first did not end the command."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import TIMEOUT_S

COMMAND = """
import sys, time
from determined.cli.following.interrupt import interrupt_once
interrupt_once()
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("ending", flush=True)
    deadline = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < deadline:
        time.sleep(0.01)
    print("last words", flush=True)
    sys.exit(130)
"""


@contextmanager
def command(ending_s: float) -> Iterator[subprocess.Popen[str]]:
    """A command that takes ``ending_s`` to end when it is interrupted; it is ready."""
    # A shell's background job ignores SIGINT, and with it these tests.
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(ending_s)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=TIMEOUT_S)
    return out


def test_a_second_press_in_the_same_breath_lets_the_command_finish() -> None:
    with command(0.3) as process:
        for _ in range(5):
            process.send_signal(signal.SIGINT)
        assert said(process) == "ending\nlast words\n"
        assert process.returncode == 130


def test_a_later_press_ends_a_command_that_hangs() -> None:
    with command(60) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(1.2)
        process.send_signal(signal.SIGINT)
        assert said(process) == "ending\n"
        assert process.returncode == 130


def test_programs_that_it_starts_are_interrupted_as_usual() -> None:
    starter = (
        "import subprocess, sys\n"
        "from determined.cli.following.interrupt import interrupt_once\n"
        "interrupt_once()\n"
        "show = 'import signal; print(signal.getsignal(signal.SIGINT))'\n"
        "subprocess.run([sys.executable, '-c', show])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", starter],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert "default_int_handler" in done.stdout


def test_one_that_a_person_was_asked_for_is_handled_too() -> None:
    asking = (
        "import time\n"
        "from determined.cli.following.interrupt import interrupt_again, interrupt_once\n"
        "interrupt_once()\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        interrupt_again()\n"
        "        print('handled', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", asking],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "handled\n"
    assert process.wait(TIMEOUT_S) == 0
