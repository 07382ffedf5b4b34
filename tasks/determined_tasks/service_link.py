"""The connection of legs to the service."""

from determined.common.service_link import TIMEOUT_SECONDS, ServiceLink

__all__ = ["TIMEOUT_SECONDS", "ServiceLink"]
