"""Optional packages: what to say when one is missing."""

from __future__ import annotations

import importlib

from determined.common import installation


def require(package: str, extra: str, asker: str) -> None:
    """Import ``package``. Raises ImportError that names what to install for ``asker``."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        if error.name is not None and not package.startswith(error.name):
            # The package is installed, but one of its own imports is missing.
            raise
        raise ImportError(
            f"{asker} needs the package {package}: {installation.command(extra)}",
            name=package,
        ) from error
