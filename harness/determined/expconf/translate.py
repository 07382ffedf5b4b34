"""Turning pydantic's errors into problems in the user's own file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import ErrorDetails

from determined.expconf import fields, steps
from determined.expconf.base import BROKEN_RULE, MEMBER_MARK, NO_MEMBER, WRONG_SHAPE
from determined.expconf.durations import DURATION_PATTERN
from determined.expconf.environment import VARIABLE
from determined.expconf.fields import EXPERIMENT, FileFormat
from determined.expconf.masking import SECRET_FIELDS
from determined.expconf.paths import Path, render
from determined.expconf.problems import MASK, nearest, show
from determined.expconf.resources import SIZE_PATTERN
from determined.expconf.searcher import plugin_names
from determined.expconf.secret_text import is_variable_name

#: Kinds of findings that callers treat differently; all others have the kind "value".
MISSING, UNKNOWN = "missing", "unknown"
_LISTED = 20  # names that are still readable in one message
_SAME = 0.85  # difflib's ratio of names that one slip of the fingers parts


@dataclass(frozen=True)
class Finding:
    """A problem without its line; ``kind`` tells the caller to which stage it belongs."""

    kind: str
    path: Path
    message: str
    found: str | None = None
    allowed: str | None = None
    suggestion: str | None = None


_TYPES = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "none_required": "null",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_PATTERNS = {
    r"^/": "an absolute path (one that begins with '/')",
    VARIABLE: "NAME=VALUE",
    r"^[rwm]+$": "a mode made of the letters r, w and m",
    DURATION_PATTERN: "a duration with its unit, such as '30s', '5m' or '1h30m'",
    SIZE_PATTERN: "a size such as 4294967296, '4G' or '1.5GiB'",
}


def findings(
    errors: list[ErrorDetails], data: dict[str, Any], form: FileFormat = EXPERIMENT
) -> list[Finding]:
    """Describe each error in the user's terms.

    Args:
        errors: ``ValidationError.errors()`` of the whole configuration.
        data: the configuration as the user wrote it, in any accepted form.
        form: what kind of configuration it is.
    """
    found = [finding for error in errors for finding in _translate(error, data, form)]
    # One list for all devices is reported once per device.
    return list({(finding.path, finding.message): finding for finding in found}.values())


def repaired(data: dict[str, Any], found: list[Finding]) -> dict[str, Any] | None:
    """A copy in which misspelled names and types of searcher and storage are as suggested.

    Returns:
        None if there are no suggestions.
    """
    changes: dict[str, dict[str, Any]] = {}
    for section, tag in (("searcher", "name"), ("checkpoint_storage", "type")):
        for finding in found:
            if (
                finding.suggestion is None
                or finding.path[:1] != (section,)
                or len(finding.path) != 2
            ):
                continue
            written = changes.get(section, data[section])
            if finding.path[1] == tag:
                changes[section] = {**written, tag: finding.suggestion}
            elif finding.suggestion == tag and tag not in written:
                value = written[finding.path[1]]
                rest = {key: item for key, item in written.items() if key != finding.path[1]}
                changes[section] = {**rest, tag: value}
    return {**data, **changes} if changes else None


def _translate(error: ErrorDetails, data: dict[str, Any], form: FileFormat) -> Iterator[Finding]:
    location, kind, context = error["loc"], error["type"], error.get("ctx", {})
    path, value = _place(location[:-1] if kind == MISSING else location, data, form)
    shown = _show(value, path)
    if kind == NO_MEMBER:
        allowed = context["allowed"].split(",")
        if path == ("searcher",):
            allowed += plugin_names()
        yield from _no_member(location, path, value, context["key"], allowed, data, form)
    elif kind == "extra_forbidden":
        yield unknown_field(location[:-1], path, data, form)
    elif kind == MISSING:
        path = (*path, location[-1])
        yield Finding(MISSING, path, "required field is missing")
    elif kind == "literal_error":
        found = re.findall(r"'([^']*)'|\b(True|False)\b", context["expected"])
        allowed = [text or word.lower() for text, word in found] or [context["expected"]]
        yield wrong_choice(path, error["input"], allowed)
    elif kind == "value_error" and path == ("searcher",):
        # A plug-in's rule about several fields: a template may still change them.
        yield Finding(MISSING, path, str(context["error"]))
    elif kind == "value_error":
        yield Finding("value", path, f"{context['error']}, found {shown}", shown)
    elif kind == BROKEN_RULE:
        message = steps.period(path, value, data) or context["message"]
        yield Finding("value", path, message, shown, context["allowed"] or None)
    elif kind == WRONG_SHAPE:
        yield _expected(path, context["expected"], value, shown)
    elif kind in _TYPES:
        yield _expected(path, _TYPES[kind], value, shown)
    elif kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        allowed_text = f"{words} {show(context[key])}"
        message = f"must be {allowed_text}, found {shown}"
        yield Finding("value", path, message, shown, allowed_text)
    elif kind == "string_pattern_mismatch" and context["pattern"] == VARIABLE and "=" not in value:
        yield _variable_without_value(path, value)
    elif kind == "string_pattern_mismatch":
        yield _expected(path, _PATTERNS.get(context["pattern"], context["pattern"]), value, shown)
    elif kind in ("too_short", "string_too_short"):
        yield Finding("value", path, "must not be empty", shown, "a value that is not empty")
    else:
        yield Finding("value", path, f"{error['msg']}, found {shown}", shown)


def unknown_field(
    location: tuple[str | int, ...], path: Path, data: dict[str, Any], form: FileFormat = EXPERIMENT
) -> Finding:
    """A field that does not exist in the section at a location of pydantic's errors."""
    holder = _at(path[:-1], data)
    sections = fields.sections_at(location, form.root)
    allowed = fields.names(fields.with_plugins(sections, holder.get("name")))
    listed = ", ".join(allowed)
    if form is EXPERIMENT and (older := steps.successor(path, data)) is not None:
        return Finding(UNKNOWN, path, f"unknown field: {older[1]}", None, listed, older[0])
    suggestion = _meant(path, allowed, holder, form)
    message = "unknown field"
    tag = _tag_of(holder) if location and _is_member(location[-1]) else None
    if tag:
        message += f" for {tag}"
    if suggestion:
        message += f"; did you mean {suggestion!r}?"
    shown = listed
    if suggestion and len(allowed) > _LISTED:
        shown = f"one of {len(allowed)} fields, which {form.listing} lists"
    return Finding(UNKNOWN, path, f"{message} (allowed: {shown})", None, listed, suggestion)


def _meant(
    path: Path, allowed: list[str], siblings: dict[str, Any], form: FileFormat
) -> str | None:
    """The suggestion for an unknown field: the same name elsewhere, or a similar one in the section."""
    key, written = str(path[-1]), fields.elsewhere(form)
    if written.get(key, render(path)) != render(path):
        return written[key]
    # A field that is set already was hardly meant, unless its name is nearly the same: a slip in --config.
    free = [n for n in allowed if n not in siblings or nearest(key, [n], cutoff=_SAME)]
    here = nearest(key, free)
    if here is None and len(path) == 1:
        close = nearest(key, written, cutoff=0.8)
        return written[close] if close else None
    return here


def wrong_choice(path: Path, value: Any, allowed: list[str]) -> Finding:
    """A value that is not one of the allowed words."""
    shown, listed = _show(value, path), ", ".join(allowed)
    suggestion = nearest(value, allowed)
    hint = f"; did you mean {suggestion!r}?" if suggestion else ""
    message = f"found {shown}{hint} (allowed: {listed})"
    return Finding("value", path, message, shown, listed, suggestion)


def _no_member(
    location: tuple[str | int, ...],
    path: Path,
    value: Any,
    key: str,
    allowed: list[str],
    data: dict[str, Any],
    form: FileFormat,
) -> Iterator[Finding]:
    """A union whose ``name`` or ``type`` chooses no member."""
    if not isinstance(value, dict):
        finding = _expected(path, "a mapping", value, _show(value, path))
        example = value if isinstance(value, str) and value in allowed else allowed[0]
        hint = f"; write it as {{{key}: {example}, ...}}"
        yield replace(finding, message=finding.message + hint)
        return
    if value.get(key) is None:
        listed = ", ".join(allowed)
        message = f"required field is missing (allowed: {listed})"
        yield Finding(MISSING, (*path, key), message, None, listed)
    else:
        finding = wrong_choice((*path, key), value[key], allowed)
        if path[0] == "hyperparameters":
            note = (
                "; a group of hyperparameters cannot have a member called 'type': {type: const, val: "
                "{type: …}} hands such a mapping to the trials as it is"
            )
            finding = replace(finding, message=finding.message + note)
        yield finding
    if path[0] != "hyperparameters":
        sections = fields.with_plugins(fields.sections_at(location, form.root), None)
        for name in value:
            if not fields.known(sections, name):
                yield unknown_field(location, (*path, name), data, form)


def _expected(path: Path, expected: str, value: Any, shown: str) -> Finding:
    message = f"expected {expected}, found {shown}"
    if expected == "text" and isinstance(value, bool | int | float) and shown != MASK:
        message += f"; put it in quotes: '{shown}'"
    return Finding("value", path, message, shown, expected)


def _variable_without_value(path: Path, value: str) -> Finding:
    """As of Docker's command line, which takes such a variable from where it is typed."""
    name = value if is_variable_name(value) else None
    message = (
        f"expected NAME=VALUE, found {MASK if name is None else show(name)} without a value: variables of "
        f"the agent are not passed on to tasks; write {name or 'NAME'}=VALUE, or "
        f"{name or 'NAME'}= for an empty value"
    )
    return Finding("value", path, message, name or MASK, "NAME=VALUE")


def _place(location: tuple[str | int, ...], data: Any, form: FileFormat) -> tuple[Path, Any]:
    """The path in the user's file, and its value, for a location of pydantic's errors.

    The models read today's form. If the user wrote an older form (one list for all devices, ``gpu``),
    steps that only today's form has are left out.
    """
    path: list[str | int] = []
    for step in location:
        if _is_member(step):
            continue
        if isinstance(data, dict) and isinstance(step, str):
            if step not in data:
                older = form.renamed.get((*path, step))
                if older is None or older not in data:
                    break
                step = older
            data = data[step]
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        elif isinstance(data, list):
            continue
        else:
            break
        path.append(step)
    return tuple(path), data


def _show(value: Any, path: Path) -> str:
    hidden = any(step in SECRET_FIELDS or step == "registry_auth" for step in path)
    if (hidden or "environment_variables" in path) and not isinstance(value, dict | list | None):
        return MASK
    return show(value)


def _is_member(step: str | int) -> bool:
    return isinstance(step, str) and step.startswith(MEMBER_MARK)


def _at(path: Path, data: Any) -> dict[str, Any]:
    for step in path:
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return {}
    return data if isinstance(data, dict) else {}


def _tag_of(section: dict[str, Any]) -> str | None:
    for key in ("name", "type"):
        if isinstance(section.get(key), str):
            return f"{key}: {section[key]}"
    return None
