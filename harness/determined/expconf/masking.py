"""The secret fields, and copies of configurations without their values."""

from typing import Any

from determined.expconf.problems import MASK

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


def masked(config: dict[str, Any]) -> dict[str, Any]:
    """A copy in which every secret that is set reads ``********``, for printing or sending."""
    return _walk(config, ())


def _walk(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_walk(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    secret = any(path[: len(section)] == section for section in _SECTIONS)
    return {
        key: MASK
        if secret and key in SECRET_FIELDS and item is not None
        else _walk(item, (*path, key))
        for key, item in value.items()
    }
