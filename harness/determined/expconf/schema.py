"""A JSON schema of the experiment configuration, for editors."""

from typing import Any

from determined.expconf.config import ExperimentConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: Required in a stored configuration, but filled in for the user.
_FILLED = {
    "ExperimentConfig": {"name", "hyperparameters", "checkpoint_storage", "reproducibility"},
    "Reproducibility": {"experiment_seed"},
}


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of a configuration as users write it.

    It contains every field, type, range and alternative, but no rules about several fields (``minval``
    less than ``maxval``). ``null`` is allowed wherever a field may be absent.
    """
    schema = ExperimentConfig.model_json_schema()
    sections = {"ExperimentConfig": schema, **schema["$defs"]}
    for name, section in sections.items():
        _prepare(section, _FILLED.get(name, set()))
    # Only an experiment that runs outside the platform needs no entrypoint.
    schema["required"] = ["entrypoint", *schema["required"]]
    entrypoint = schema["properties"]["entrypoint"]
    entrypoint["anyOf"] = entrypoint["anyOf"][:1]
    schema["title"] = "Determined experiment configuration"
    schema["description"] = "What to run, over which hyperparameters, on which resources."
    return {"$schema": DIALECT, **schema}


def _prepare(section: dict[str, Any], filled: set[str]) -> None:
    properties = section.get("properties")
    if properties is None:
        return
    required = [name for name in section.get("required", []) if name not in filled]
    section.pop("required", None)
    if required:
        section["required"] = required
    for name, field in properties.items():
        field.pop("title", None)
        if name not in required:
            properties[name] = _or_null(field)


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    words: dict[str, Any] = {key: field[key] for key in ("description", "default") if key in field}
    rest = {key: value for key, value in field.items() if key not in words}
    alternatives = rest["anyOf"] if set(rest) == {"anyOf"} else [rest]
    if {"type": "null"} in alternatives or not rest:
        return field
    return {**words, "anyOf": [*alternatives, {"type": "null"}]}
