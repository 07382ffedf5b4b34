"""The database server of the integration tests serves these too."""

from tests.integration.conftest import postgres_server

__all__ = ["postgres_server"]
