"""The first step of `make`, before an environment exists; each mistake is reported in one line.

    python3 first_install.py python        refuses a Python that is too old, before anything is downloaded
    python3 first_install.py pip PIP ...   runs pip, and says so if no package index can be reached

The Pythons that it refuses read the file too, so nothing here is newer than Python 2.7.
"""

import re
import subprocess
import sys

OLDEST = (3, 11)
"""As `requires-python` in pyproject.toml."""
NEWER = ("python3.13", "python3.12", "python3.11")

BROKEN = re.compile(
    r"connection broken by|Failed to establish a new connection|Failed to connect|timed out"
    r"|Network is unreachable|name resolution"
)
REASON = re.compile(r"\[Errno -?\d+\] ([\w ,.-]+)|(Cannot connect to proxy|timed out)")


def check_python():
    """Ends the program if this Python is too old; names one on the PATH that is not."""
    if sys.version_info >= OLDEST:
        return
    found = [name for name in NEWER if _runs(name)]
    words = "error: Python {}.{} is too old, at least {}.{} is needed: "
    words += (
        "type the same with PYTHON={}"
        if found
        else "install one, e.g. {}, and type the same with PYTHON="
    )
    sys.exit(words.format(*sys.version_info[:2] + OLDEST + tuple(found[:1] or NEWER[-1:])))


def _runs(name):
    """True if the program runs: pyenv has a stub for each name, which may only complain."""
    try:
        return subprocess.call([name, "-c", ""], stderr=subprocess.PIPE) == 0
    except OSError:
        return False


def run_pip(command):
    """Runs it; its exit code. Errors of the network become one line, all others stay as they are."""
    pip = subprocess.Popen(command, stderr=subprocess.PIPE, universal_newlines=True)
    said = pip.communicate()[1]
    if pip.returncode and BROKEN.search(said):
        found = REASON.search(said)
        why = " ({})".format(found.group(1) or found.group(2)) if found else ""
        said = (
            "error: pip reaches no package index{}, and packages are missing here: connect this machine, "
            "or name an index or a proxy that it reaches (PIP_INDEX_URL, PIP_PROXY), and type the same\n"
        ).format(why)
    sys.stderr.write(said)
    return pip.returncode


if __name__ == "__main__":
    if sys.argv[1] == "python":
        check_python()
    else:
        sys.exit(run_pip(sys.argv[2:]))
