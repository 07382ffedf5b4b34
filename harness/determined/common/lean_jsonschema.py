"""Imports jsonschema, which Prefect imports, without the grammar that it may want one day.

jsonschema reads international addresses (its format "iri", which Prefect never asks for) by rfc3987-syntax,
where that is installed, as it is with JupyterLab. Its import builds a parser: 1 to 2 s, more than all else of
Prefect. Here it is built when an address is first read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from types import ModuleType

_GRAMMAR = "rfc3987_syntax"


def import_it() -> None:
    """To be called before Prefect's import. Does nothing where there is no jsonschema."""
    if "jsonschema" in sys.modules or _GRAMMAR in sys.modules:
        return
    if importlib.util.find_spec(_GRAMMAR) is None:
        return
    stand_in = ModuleType(_GRAMMAR)
    stand_in.is_valid_syntax = _is_valid_syntax  # type: ignore[attr-defined]
    sys.modules[_GRAMMAR] = stand_in
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module("jsonschema")
    finally:
        del sys.modules[_GRAMMAR]


def _is_valid_syntax(term: str, value: str) -> bool:
    return bool(importlib.import_module(_GRAMMAR).is_valid_syntax(term, value))
