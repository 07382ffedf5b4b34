"""The refusals of the registry. The message is a complete sentence for the user; callers add nothing to
it."""

from __future__ import annotations


class RegistryError(Exception):
    """The base of all refusals; nothing was changed when the caller's transaction is rolled back."""


class ModelNotFound(RegistryError):
    """The model, version, alias or checkpoint does not exist."""


class ModelConflict(RegistryError):
    """The state does not allow it, or a name is taken."""


class Invalid(RegistryError):
    """A value is invalid."""
