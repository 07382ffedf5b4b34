"""Runs a script or module as ``__main__`` in a freshly forked interpreter.

The program gets what ``python3 script.py`` gives it: its own ``__main__`` module, ``sys.argv``,
``sys.path[0]``, standard streams, default signal handling, random state, exit hooks and exit codes. Two
differences remain (docs/operate/agent.md): all forks of one parent share one hash seed, and imports done by
the parent are not done again.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import io
import os
import random
import runpy
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from determined.common.forking.beginning import set_environment

_OWN_FILES = frozenset({__file__})

# Not an exit code: the program ended by Ctrl-C, and its parent is to see the signal.
_INTERRUPTED = -int(signal.SIGINT)


def run_as_main(
    argv: list[str],
    *,
    as_module: bool,
    env: Mapping[str, str],
    base_path: list[str],
    executable: str | None = None,
    at_end: Callable[[], None] | None = None,
) -> NoReturn:
    """Becomes the program; never returns.

    ``argv`` begins with the script, or with the module's name (``as_module``). File descriptors 0-2 and the
    current directory must be set; ``base_path`` is ``sys.path`` without a script's directory.
    ``executable``: an interpreter with the same ``base_path``, for what the program starts. ``at_end`` is
    called when the program has finished, exit hooks included, unless it has been taken over
    (:func:`take_end`).
    """
    _reset_interpreter(env)
    if executable is not None:
        _set_executable(executable)
    _end[:] = [] if at_end is None else [at_end]
    code = 1
    try:
        code = _execute(argv, as_module, base_path)
    finally:
        # Also for what Python cannot catch a second time: an exit hook that calls sys.exit().
        code = _end_program(code)
        for call in _end:
            call()
        if code == _INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code & 0xFF)


_end: list[Callable[[], None]] = []


def take_end() -> Callable[[], None] | None:
    """The function to call at this program's end, for a fork that ends in the program's place."""
    return _end.pop() if _end else None


def _reset_interpreter(env: Mapping[str, str]) -> None:
    set_environment(env)
    gc.enable()
    for number in signal.valid_signals():
        # SIGPIPE and SIGXFSZ stay ignored: that is Python's default.
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ):
            continue
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _open_streams()
    faulthandler.enable()
    _renew_random_state()
    _set_threads(env)
    _set_cache(env)
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        # Spawned workers find the main script relative to it.
        process.ORIGINAL_DIR = str(Path.cwd())  # type: ignore[attr-defined]
        process.current_process().authkey = os.urandom(32)


def _set_executable(executable: str) -> None:
    sys.executable = executable
    if "multiprocessing.spawn" in sys.modules:  # it has read it
        sys.modules["multiprocessing.spawn"].set_executable(executable)


def _set_threads(env: Mapping[str, str]) -> None:
    """Set torch's threads: torch read ``OMP_NUM_THREADS`` at its import, which was before the fork."""
    torch = sys.modules.get("torch")
    if torch is not None and env.get("OMP_NUM_THREADS", "").isdigit():
        torch.set_num_threads(max(1, int(env["OMP_NUM_THREADS"])))


def _set_cache(env: Mapping[str, str]) -> None:
    """Set jax's directory for what it compiles: it read the variable at its import, as torch does its."""
    jax = sys.modules.get("jax")
    if jax is not None and env.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", env["JAX_COMPILATION_CACHE_DIR"])


def _open_streams() -> None:
    """Make standard output and error unbuffered, as with ``PYTHONUNBUFFERED=1``: each write reaches the
    pipe at once.
    """
    stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdin = stdin
    sys.__stdin__ = stdin  # type: ignore[misc]
    encoding = sys.stdout.encoding if sys.stdout else "utf-8"
    errors = (sys.stdout.errors if sys.stdout else None) or "strict"
    for name, number, how in (("stdout", 1, errors), ("stderr", 2, "backslashreplace")):
        raw = io.FileIO(number, "w", closefd=False)
        stream = io.TextIOWrapper(
            raw,
            encoding=encoding,
            errors=how,
            write_through=True,
            line_buffering=False,
        )
        stream.mode = "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _renew_random_state() -> None:
    """Seed the random generators. `random` seeds itself at a fork; the others would draw the same numbers
    in every trial.
    """
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _execute(argv: list[str], as_module: bool, base_path: list[str]) -> int:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = main
    interpreter = [sys.executable]
    try:
        if as_module:
            sys.orig_argv = [*interpreter, "-m", *argv]
            sys.path[:] = [str(Path.cwd()), *base_path]
            sys.argv[:] = ["-m", *argv[1:]]
            # What the interpreter itself calls for `-m`; there is no public function that leaves
            # __main__ in place for multiprocessing and pickle.
            runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]
        else:
            script = argv[0]
            sys.orig_argv = [*interpreter, *argv]
            sys.path[:] = [str(Path(os.path.realpath(script)).parent), *base_path]
            sys.argv[:] = argv
            _run_script(script, main)
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:
        return _report(error)
    return 0


def _run_script(script: str, main: types.ModuleType) -> None:
    path = str(Path.cwd() / script)
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    main.__dict__.setdefault("__annotations__", {})
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    print(error.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> int:
    """Print the traceback as the interpreter would, without the frames of this module."""
    shown: TracebackType | None = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename in _OWN_FILES:
        shown = shown.tb_next
    error = error.with_traceback(shown)
    # Exit hooks look there whether the program has failed.
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, shown
    try:
        sys.excepthook(type(error), error, shown)
    except BaseException:
        traceback.print_exc()
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _end_program(code: int) -> int:
    """Do what an interpreter does at its end: wait for threads, run exit hooks, flush.

    The heap is not freed, because that alone would take longer than a short trial.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    if not _flush():
        return 120  # the interpreter's own exit code for output that could not be written
    return code


def _flush() -> bool:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            try:
                stream.flush()
            except OSError:
                return False
    return True
