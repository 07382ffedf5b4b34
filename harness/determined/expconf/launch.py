"""The command line of an entrypoint."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

TRIAL_CLASS = re.compile(r"[\w.]+:\w+")
"""An entrypoint that is ``module:TrialClass``."""


def launch_command(config: Mapping[str, Any]) -> list[str]:
    """The command line that starts a trial's training code.

    Args:
        config: an experiment configuration with an ``entrypoint``.

    Returns:
        A list of words unchanged; for ``module:TrialClass``, the launcher for trial classes; for any
        other text, ``sh -c`` with the text.

    Raises:
        ValueError: there is no entrypoint.
    """
    entrypoint = config.get("entrypoint")
    if not entrypoint:
        raise ValueError("the experiment configuration has no entrypoint")
    if isinstance(entrypoint, str):
        if TRIAL_CLASS.fullmatch(entrypoint.strip()):
            launcher = "determined.launch.torch_distributed"
            return ["python3", "-m", launcher, "--trial", entrypoint.strip()]
        return ["sh", "-c", entrypoint]
    return [str(word) for word in entrypoint]


def trial_class(config: Mapping[str, Any]) -> str | None:
    """The ``module:TrialClass`` that the entrypoint trains; None if it is any other program."""
    entrypoint = config.get("entrypoint") or ""
    if isinstance(entrypoint, str) and TRIAL_CLASS.fullmatch(entrypoint.strip()):
        return entrypoint.strip()
    try:
        words = shlex.split(entrypoint) if isinstance(entrypoint, str) else map(str, entrypoint)
    except ValueError:
        return None
    listed = [part for word in words for part in word.split("=", 1)]
    if not any(word.startswith("determined.launch.") for word in listed):
        return None
    after = listed[listed.index("--trial") + 1 :] if "--trial" in listed else []
    return after[0] if after else None
