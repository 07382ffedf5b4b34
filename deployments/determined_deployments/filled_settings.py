"""``python -m determined_deployments.filled_settings TEMPLATE SECRETS FILE COMMAND…``

In Kubernetes a ConfigMap holds settings, and Secrets, mounted as files of the folder ``SECRETS``, hold
passwords. In a text of ``TEMPLATE`` (YAML or JSON), ``$(name)`` stands for the content of the file ``name``,
and ``$(url:name)`` for the same inside a URL. The filled settings are written to ``FILE`` (JSON, mode 0600),
and this process becomes ``COMMAND``. No secret is in the environment or in an argument, where other processes
would read it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import yaml

_REFERENCE = re.compile(r"\$\((url:)?([A-Za-z0-9][A-Za-z0-9._-]*)\)")


class MissingSecret(Exception):
    """The template names secrets that the folder lacks."""


def fill(template: Any, secrets: Path) -> Any:
    """``template`` with every reference replaced. Raises MissingSecret with all names that are not there."""
    missing: set[str] = set()

    def content(found: re.Match[str]) -> str:
        try:
            # Editors and `echo` end files with a line break that belongs to no password.
            text = (secrets / found[2]).read_text().rstrip("\r\n")
        except OSError:
            missing.add(found[2])
            return ""
        return urllib.parse.quote(text, safe="") if found[1] else text

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [filled(item) for item in value]
        return _REFERENCE.sub(content, value) if isinstance(value, str) else value

    result = filled(template)
    if missing:
        raise MissingSecret(
            f"{secrets} has no {', '.join(sorted(missing))}: add the key to the Secret that is mounted there"
        )
    return result


def main(template: str, secrets: str, target: str, *command: str) -> None:
    """Writes the settings, then becomes ``command``, if there is one."""
    try:
        settings = fill(yaml.safe_load(Path(template).read_text()), Path(secrets))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, MissingSecret) as error:
        raise SystemExit(f"{template}: {error}") from None
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(settings, file, indent=2)
    if command:
        os.execvp(command[0], command)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit("expected TEMPLATE SECRETS FILE [COMMAND…]")
    main(*sys.argv[1:])
