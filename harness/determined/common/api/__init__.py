"""The client side of the REST API: :class:`Session` and its errors."""

from determined.common.api import errors
from determined.common.api.session import Session

__all__ = ["Session", "errors"]
