"""Names, aliases, labels, tags and metadata as they may be; everything here raises :class:`Invalid`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from determined.common.wire import limits
from determined.common.wire.checks import refusal, show
from determined_registry.models.errors import Invalid

_ALIAS = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER = re.compile(r"[vV]?[0-9]+")


def check_text(text: Any, path: str, most: int = limits.TEXT_CHARS) -> str:
    """Text that the database can hold, of at most ``most`` characters."""
    why = refusal(text, path, most)
    if why is not None:
        raise Invalid(why)
    return str(text)


def check_name(name: Any) -> str:
    """The name of a model, without spaces around it.

    A number alone would be an id, and "/" stands between the model and the version in MLflow's addresses.
    """
    text = check_text(name, "name", limits.MODEL_NAME_CHARS).strip()
    if not text:
        raise Invalid("name: a model needs a name")
    if text.isdecimal():
        raise Invalid(f"name: {text!r} is a number, which would be taken for a model's id")
    if "/" in text:
        raise Invalid(f"name: {show(text)} holds '/', which separates model and version")
    if not text.isprintable():
        raise Invalid(f"name: {show(text)} holds line ends or control characters")
    if text in (".", ".."):
        raise Invalid(f"name: {text!r} cannot stand in an address")
    return text


def check_alias(alias: Any) -> str:
    """An alias: letters, digits, "_" and "-", and no version's number."""
    text = check_text(alias, "alias", limits.ALIAS_CHARS)
    if not _ALIAS.fullmatch(text):
        raise Invalid(f"alias: {show(text)}: letters, digits, '_' and '-' are allowed")
    if text.lower() == "latest" or _NUMBER.fullmatch(text):
        raise Invalid(f"alias: {text!r} names a version by its number already: choose a word")
    return text


def check_labels(labels: Any) -> list[str]:
    """A list of texts, each once and in their order."""
    if not isinstance(labels, Sequence) or isinstance(labels, str):
        raise Invalid("labels: expected a list of texts")
    if len(labels) > limits.LABELS:
        raise Invalid(f"labels: {len(labels)} found, at most {limits.LABELS} are allowed")
    texts = [check_text(one, f"labels[{n}]", limits.NAME_CHARS) for n, one in enumerate(labels)]
    return list(dict.fromkeys(texts))


def check_tags(tags: Any) -> dict[str, str | None]:
    """``{key: text}``; None: the key is to go. Other values become text, as MLflow writes them."""
    if not isinstance(tags, Mapping):
        raise Invalid("tags: expected an object of keys and texts")
    if len(tags) > limits.TAGS:
        raise Invalid(f"tags: {len(tags)} found, at most {limits.TAGS} are allowed")
    found: dict[str, str | None] = {}
    for key, value in tags.items():
        if not check_text(key, "the key of a tag", limits.TAG_KEY_CHARS):
            raise Invalid("tags: a key is empty")
        if isinstance(value, dict | list):
            raise Invalid(f"tags.{key}: expected text, found an object or a list")
        found[key] = None if value is None else check_text(str(value), f"tags.{key}")
    return found


def check_metadata(metadata: Any) -> dict[str, Any]:
    """A JSON object of at most :data:`limits.METADATA_BYTES`."""
    if not isinstance(metadata, Mapping):
        raise Invalid("metadata: expected an object")
    check_size(metadata, "metadata")
    return dict(metadata)


def check_size(value: Any, path: str) -> None:
    """At most :data:`limits.METADATA_BYTES` as JSON."""
    try:
        size = len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"{path}: cannot be written as JSON: {error}") from None
    if size > limits.METADATA_BYTES:
        raise Invalid(f"{path}: {size} bytes found, at most {limits.METADATA_BYTES} are allowed")
