"""Plain copies of configurations that were built in Python rather than read from a file."""

from collections.abc import Mapping
from typing import Any

from determined.expconf import paths, scalars
from determined.expconf.paths import Path
from determined.expconf.problems import ConfigError, Problem


def plain_copy(config: Mapping[str, Any], source: str | None = None) -> dict[str, Any]:
    """A deep copy of text, numbers, booleans, null, lists and mappings with text keys.

    Tuples become lists and number keys become text, as they would in JSON.

    Raises:
        ConfigError: it contains other values; the error names each of them.
    """
    problems: list[Problem] = []
    copied = _copy(config, (), source, problems)
    if problems:
        raise ConfigError(problems)
    return dict(copied)


def _copy(value: Any, path: Path, source: str | None, problems: list[Problem]) -> Any:
    if isinstance(value, Mapping):
        copied = {}
        for key, item in value.items():
            name = key if isinstance(key, str) else str(key)
            _keep(name, path, source, problems)
            copied[name] = _copy(item, (*path, name), source, problems)
        return copied
    if isinstance(value, list | tuple):
        return [_copy(item, (*path, i), source, problems) for i, item in enumerate(value)]
    return _keep(value, path, source, problems)


def _keep(value: Any, path: Path, source: str | None, problems: list[Problem]) -> Any:
    try:
        return scalars.keepable(value)
    except scalars.ScalarError as error:
        problems.append(Problem(paths.render(path), None, None, None, None, str(error), source))
        return None
