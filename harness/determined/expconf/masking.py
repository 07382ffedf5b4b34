"""Hides secrets: finds the fields of a configuration that hold some, and copies it without their values.

This module alone knows the fields. :func:`masked` is for the owner, who prints a configuration or sends it
somewhere. :func:`masked_for_others` is what other users of the cluster see.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from determined.expconf.problems import MASK
from determined.expconf.secret_text import SECRET_NAME, is_harmless, is_random, masked_text

#: Fields that hold secrets, wherever a configuration has them.
SECRET_FIELDS = frozenset(
    {
        "access_key",
        "secret_key",
        "connection_string",
        "credential",
        "password",
        "auth",
        "identitytoken",
        "registrytoken",
        "token",
    }
)
#: The sections with such fields. Elsewhere (hyperparameters, data) users choose the names.
_SECTIONS = (
    ("checkpoint_storage",),
    ("tensorboard_storage",),
    ("data_layer",),
    ("environment", "registry_auth"),
    ("integrations",),
)
_VARIABLES = ("environment", "environment_variables")
_POD = ("environment", "pod_spec")
#: What a task runs. An experiment's entrypoint is shown to everybody, as its model definition is.
_WORDS = ("entrypoint", "tensorboard_args")
#: What everybody may see as it is, because it is shown in lists, of trials and on plots.
_OPEN = ("name", "description", "labels", "hyperparameters", "log_policies")

Path = tuple[str, ...]


def masked(config: dict[str, Any]) -> dict[str, Any]:
    """A copy in which every secret that is set reads ``********``, for printing or sending.

    Environment variables, addresses and the user's own fields are as they are.
    """
    return _walk(config, ())


def _walk(value: Any, path: Path) -> Any:
    if isinstance(value, list):
        return [_walk(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: MASK if _is_secret(path, key, item) else _walk(item, (*path, key))
        for key, item in value.items()
    }


def _is_secret(path: Path, key: str, item: Any) -> bool:
    if item is None or key not in SECRET_FIELDS:
        return False
    return any(path[: len(section)] == section for section in _SECTIONS)


def is_secret(path: tuple[str | int, ...], value: Any) -> bool:
    """True if the field at the path holds a secret."""
    *section, key = map(str, path)
    return _is_secret(tuple(section), key, value) or (
        isinstance(value, str) and masked_text(value) != value
    )


def masked_for_others(
    config: dict[str, Any], known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A copy for users who neither own the experiment nor administer the cluster.

    Masked are the secret fields, the values of all environment variables, those of ``pod_spec``, fields of
    ``data`` with a secret's name, and values that look like secrets in any text (a password in an address,
    a token). Hyperparameters stay: trials show them to everybody.

    Args:
        known: a ``checkpoint_storage`` section; equal fields of the configuration are not a
            secret for the reader (the cluster's default storage).
    """
    return {key: _hidden(item, (key,), known or {}) for key, item in config.items()}


def masked_task_for_others(config: dict[str, Any]) -> dict[str, Any]:
    """As :func:`masked_for_others`, of a command, a notebook and the like: the words that are run are masked
    as a whole, because people type secrets there, which look like anything."""
    found = masked_for_others(config)
    return {**found, **{key: _without_words(found[key]) for key in _WORDS if key in found}}


def _without_words(given: Any) -> Any:
    if isinstance(given, list):
        return [MASK] if given else []
    return given if given is None else MASK


def _hidden(value: Any, path: Path, known: Mapping[str, Any]) -> Any:
    if path[0] in _OPEN:
        return value
    if path == _VARIABLES:
        return _without_values(value)
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, list):
        return [_hidden(item, path, known) for item in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, item in value.items():
        here = (*path, str(key))
        if _is_secret(path, key, item):
            same = path == ("checkpoint_storage",) and item == known.get(key)
            found[key] = item if same else MASK
        elif path[0] == "data" and isinstance(item, str) and SECRET_NAME.search(str(key)):
            found[key] = MASK
        elif path[:2] == _POD and key == "env" and isinstance(item, list):
            found[key] = [_without_pod_value(one) for one in item]
        else:
            found[key] = _hidden(item, here, known)
    return found


def _without_values(given: Any) -> Any:
    """``NAME=********`` for each variable of a list of ``NAME=value``, or of such lists by slot type."""
    if isinstance(given, dict):
        return {
            key: MASK if isinstance(item, str) else _without_values(item)
            for key, item in given.items()
        }
    if isinstance(given, list):
        return [_without_values(item) for item in given]
    if isinstance(given, str):
        name, sign, _ = given.partition("=")
        return f"{name}={MASK}" if sign else given
    return given


def _without_pod_value(variable: Any) -> Any:
    if isinstance(variable, dict) and "value" in variable:
        return {**variable, "value": MASK}
    return variable


def masked_to_share(config: dict[str, Any]) -> dict[str, Any]:
    """As :func:`masked_for_others`, but with the environment variables that are plainly harmless (numbers,
    switches, paths): for a bug report."""
    found = masked_for_others(config)
    environment = config.get("environment")
    if isinstance(environment, dict) and "environment_variables" in environment:
        shown = _with_harmless(environment["environment_variables"])
        found["environment"] = {**found["environment"], "environment_variables": shown}
    return found


def _with_harmless(given: Any) -> Any:
    if isinstance(given, dict):
        return {
            key: (item if is_harmless(str(key), item) else MASK)
            if isinstance(item, str)
            else _with_harmless(item)
            for key, item in given.items()
        }
    if isinstance(given, list):
        return [_with_harmless(item) for item in given]
    if isinstance(given, str):
        name, sign, value = given.partition("=")
        return f"{name}={MASK}" if sign and not is_harmless(name, value) else given
    return given


def secret_values(config: dict[str, Any]) -> set[str]:
    """The secrets of a configuration, to be looked for in other texts: those of eight and more characters.

    Of the environment variables, those whose name or look says so: an ordinary word would be found
    everywhere.
    """
    return {value for value in _secrets(config, ()) if len(value) >= 8 and value != MASK}


def _secrets(value: Any, path: Path) -> Iterator[str]:
    if path and path[0] in _OPEN:
        return
    if path == _VARIABLES:
        yield from _secret_variables(value)
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            named = _is_secret(path, key, item) or (
                path[:1] == ("data",) and SECRET_NAME.search(str(key)) is not None
            )
            if named and isinstance(item, str):
                yield item
            elif path[:2] == _POD and key == "env" and isinstance(item, list):
                for one in item:
                    if isinstance(one, dict) and isinstance(one.get("value"), str):
                        yield from _telling(str(one.get("name")), one["value"])
            else:
                yield from _secrets(item, (*path, str(key)))


def _secret_variables(given: Any) -> Iterator[str]:
    if isinstance(given, dict):
        for key, item in given.items():
            if isinstance(item, str):
                yield from _telling(str(key), item)
            else:
                yield from _secret_variables(item)
    elif isinstance(given, list):
        for item in given:
            yield from _secret_variables(item)
    elif isinstance(given, str):
        name, _, value = given.partition("=")
        yield from _telling(name, value)


def _telling(name: str, value: str) -> Iterator[str]:
    if is_harmless(name, value) or value.startswith("/"):
        return
    if SECRET_NAME.search(name) or is_random(value) or masked_text(value) != value:
        yield value


def masked_fields(config: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The fields in which ``********`` stands for a secret that was masked."""
    if path and path[0] in _OPEN:
        return
    if isinstance(config, str):
        if MASK in config:
            yield path
    elif isinstance(config, dict):
        for key, item in config.items():
            yield from masked_fields(item, (*path, str(key)))
    elif isinstance(config, list):
        for index, item in enumerate(config):
            yield from masked_fields(item, (*path, index))
