"""Models, their versions and aliases: every change of them, and what is checked before.

Functions over a connection that is inside a transaction of the caller's, so that the service and MLflow's
stores, which are other processes, change the rows in the same way. They are not async: the service calls them
with ``await conn.run_sync(function, …)``.

* :mod:`.errors`: what they raise
* :mod:`.checks`: names, aliases, labels, tags and metadata as they may be
* :mod:`.changes`: models; :mod:`.versions`; :mod:`.aliases`
* :mod:`.holders`: which checkpoints are registered, so that they cannot be deleted

Each change locks the row of the model first and a checkpoint's after it. Two who register at once get two
numbers; of two who move an alias at once the last one wins, and the history has both.
"""

from determined_registry.models.aliases import delete_alias, set_alias
from determined_registry.models.changes import (
    change_metadata,
    change_model,
    create_model,
    delete_model,
    find_model,
    set_archived,
    set_tags,
)
from determined_registry.models.checks import check_alias
from determined_registry.models.errors import Invalid, ModelConflict, ModelNotFound, RegistryError
from determined_registry.models.versions import (
    change_version,
    delete_version,
    find_version,
    register_version,
    set_version_tags,
)

__all__ = [
    "Invalid",
    "ModelConflict",
    "ModelNotFound",
    "RegistryError",
    "change_metadata",
    "change_model",
    "change_version",
    "check_alias",
    "create_model",
    "delete_alias",
    "delete_model",
    "delete_version",
    "find_model",
    "find_version",
    "register_version",
    "set_alias",
    "set_archived",
    "set_tags",
    "set_version_tags",
]
