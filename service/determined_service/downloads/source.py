"""A checkpoint whose files are wanted: :func:`find_source`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from determined_registry.database.tables import checkpoints, experiments
from determined_service.base.errors import Conflict, NotFound
from determined_service.downloads.permitted import require_permitted
from determined_service.views.secrets import Viewer

c = checkpoints.c

# As text: they may list 50,000 files, and only another process or thread looks at these.
_RESOURCES = sa.cast(c.resources, sa.Text)
_CHECKSUMS = sa.cast(c.checksums, sa.Text)
_EXECUTABLE = sa.cast(c.executable, sa.Text)
_FILE = sa.func.jsonb_each_text(c.resources).table_valued("key", "value").alias("file")
_SIZE = (
    sa.select(sa.func.coalesce(sa.func.sum(sa.cast(_FILE.c.value, sa.BigInteger)), 0))
    .select_from(_FILE)
    .where(~_FILE.c.key.like("%/"))
    .scalar_subquery()
)
_VERSION = sa.func.encode(
    sa.func.sha256(sa.func.convert_to(sa.func.concat(c.uuid, _RESOURCES, _CHECKSUMS), "UTF8")),
    "hex",
)


@dataclass(frozen=True, slots=True)
class DownloadSource:
    """``section``: its storage; ``own``: the cluster's. ``resources``, ``checksums``
    and ``executable``: JSON.

    ``size``: bytes of all files; ``file_size``: of the requested file. ``version`` changes with the list of
    files.
    """

    uuid: uuid.UUID
    section: Mapping[str, Any]
    own: Mapping[str, Any] | None
    resources: str
    checksums: str
    executable: str
    size: int
    file_size: int | None
    version: str

    def question(self, form: str, **more: Any) -> dict[str, Any]:
        """For :meth:`~determined_service.downloads.readers.Readers.read`."""
        return {
            "uuid": str(self.uuid),
            "storage": self.section,
            "own": self.own,
            "resources": self.resources,
            "checksums": self.checksums,
            "executable": self.executable,
            "format": form,
            **more,
        }


async def find_source(
    conn: AsyncConnection, wanted: uuid.UUID, viewer: Viewer, path: str | None = None
) -> DownloadSource:
    """The checkpoint, if its files exist and ``viewer`` may have the service open its storage.

    ``path``: a file of it. Raises NotFound; Conflict, with its state; Forbidden.
    """
    size_of_file = None if path is None else sa.cast(c.resources[path].astext, sa.BigInteger)
    found = await conn.execute(
        sa.select(
            c.state,
            c.reason,
            c.deletion_id,
            c.experiment_id,
            sa.func.coalesce(c.storage, experiments.c.config["checkpoint_storage"]).label(
                "section"
            ),
            experiments.c.owner_id,
            experiments.c.submitted_by,
            _RESOURCES.label("resources"),
            _CHECKSUMS.label("checksums"),
            _EXECUTABLE.label("executable"),
            _SIZE.label("size"),
            (sa.null() if size_of_file is None else size_of_file).label("file_size"),
            _VERSION.label("version"),
        )
        .select_from(checkpoints)
        .outerjoin(experiments, experiments.c.id == c.experiment_id)
        .where(c.uuid == wanted)
    )
    row = found.first()
    if row is None:
        raise NotFound(f"checkpoint {wanted} does not exist")
    _require_files(wanted, row)
    section = viewer.storage(row.section, row.owner_id, row.experiment_id, row.submitted_by)
    own = dict(viewer.default_storage) or None
    require_permitted(section, own, f"checkpoint {wanted}")
    assert section is not None
    if path is not None and (row.file_size is None or path.endswith("/")):
        raise NotFound(f"checkpoint {wanted} has no file {path!r}")
    return DownloadSource(
        wanted,
        section,
        own,
        row.resources,
        row.checksums,
        row.executable,
        int(row.size),
        row.file_size,
        row.version,
    )


def _require_files(wanted: uuid.UUID, row: sa.Row[Any]) -> None:
    if row.state == "DELETED":
        raise NotFound(f"checkpoint {wanted} was deleted")
    if row.deletion_id is not None and row.state != "PARTIALLY_DELETED":
        raise Conflict(f"checkpoint {wanted} is being deleted")
    if row.state not in ("COMPLETED", "PARTIALLY_DELETED"):
        reason = f": {row.reason}" if row.reason else ""
        raise Conflict(
            f"checkpoint {wanted} is {row.state}{reason}; only COMPLETED and PARTIALLY_DELETED ones can be "
            "downloaded"
        )
