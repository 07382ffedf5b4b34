"""``python -m determined_service.migration``: migrates the database that ``DET_SERVICE_CONFIG`` names."""

from __future__ import annotations

import sqlalchemy as sa

from determined_registry.database import migrate
from determined_service.base.settings import Settings


def main() -> None:
    """Does what the service does when it starts, and ends. Several at once wait for each other."""
    settings = Settings.load()
    try:
        migrate.upgrade(settings.db_url)
    except sa.exc.OperationalError as error:
        raise SystemExit(f"the database of the service does not answer: {error.orig}") from None
    print(f"the database of the service is at revision {migrate.head()}")


if __name__ == "__main__":
    main()
