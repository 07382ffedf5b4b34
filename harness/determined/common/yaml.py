"""YAML as published scripts read and write it: ``from determined.common import yaml``.

``safe_load`` reads configurations as the platform does (``1e-3`` is a number). The other functions are
PyYAML's.
"""

from __future__ import annotations

import sys
from typing import IO, Any

from yaml import YAMLError, dump, safe_dump, safe_dump_all, safe_load_all

from determined._absent import absent

__all__ = [
    "YAMLError",
    "dump",
    "safe_dump",
    "safe_dump_all",
    "safe_load",
    "safe_load_all",
    "safe_load_or_exit",
]

_RUAMEL = "use safe_load(text) and safe_dump(data), or the package ruamel.yaml itself"
__getattr__ = absent(
    __name__,
    dict.fromkeys(("YAML", "RoundTripLoader", "RoundTripDumper", "round_trip_load"), _RUAMEL),
)


def safe_load(stream: str | bytes | IO[Any]) -> Any:
    """The data of a YAML text or file; None if it is empty.

    Raises YAMLError for broken YAML, determined.expconf.ConfigError for a mapping that a configuration could
    not be (a repeated key, a value that JSON lacks).
    """
    import yaml

    from determined.expconf import load_yaml

    text = stream if isinstance(stream, str | bytes) else stream.read()
    if isinstance(text, bytes):
        text = text.decode()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode):
        return load_yaml(text, source=str(getattr(stream, "name", "<text>"))).data
    return yaml.safe_load(text)


def safe_load_or_exit(stream: str | bytes | IO[Any]) -> Any:
    """:func:`safe_load` for programs: says on stderr what is wrong, and ends the program with code 1."""
    from determined.expconf import ConfigError

    try:
        return safe_load(stream)
    except (YAMLError, ConfigError) as error:
        print(f"Error: the YAML cannot be read: {error}", file=sys.stderr)
        raise SystemExit(1) from None
