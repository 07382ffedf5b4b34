"""Leaves out what httpx imports and `det` does not use: more than a third of a short command's time."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import Any

_UNUSED = ("trio", "h2")
_LATER = "certifi"
"""Needed for no certificate but the public ones, by httpcore's own default."""


def import_less() -> None:
    """Makes a later ``import httpx`` lighter. Its optional parts seem not to be installed meanwhile."""
    if "httpx" not in sys.modules:
        sys.meta_path.insert(0, _Lighter())


class _Lighter:
    @staticmethod
    def find_spec(fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname == "httpx._main":  # the command line of httpx, with click, rich and pygments
            raise ImportError("det does not use the command line of httpx", name=fullname)
        if fullname == "httpx":
            # httpcore imports these if they are there. Whoever imports them later gets them.
            absent = [name for name in _UNUSED if name not in sys.modules]
            sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
            _import_when_used(_LATER)
            try:
                import httpcore  # noqa: F401
            finally:
                for name in absent:
                    del sys.modules[name]
        return None


def _import_when_used(name: str) -> None:
    """Lets ``import name`` do nothing until an attribute of the module is asked for."""
    spec = importlib.util.find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
