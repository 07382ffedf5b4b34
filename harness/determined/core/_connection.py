"""The way to the service for the contexts of one process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from determined import errors
from determined._info import ClusterInfo
from determined.common.wire.paths import RUN_COOKIE

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.common.api.transport import AnyTransport


class Connection:
    """A session that is opened by the first request and again after a fork.

    A training process that reports nothing opens no connection. ``unmanaged``: the process belongs to no
    allocation, so each request names its run of the trial. Every method raises ``errors.AllocationEnded``
    once the service has said that this allocation is over, else the errors of
    :mod:`determined.common.api.errors`. Thread-safe.
    """

    def __init__(
        self,
        info: ClusterInfo,
        transport: AnyTransport | None = None,
        *,
        unmanaged: bool = False,
    ) -> None:
        self._info = info
        self._cookies = {}
        if unmanaged:
            self._cookies[RUN_COOKIE] = f"{info.trial.trial_id}.{info.trial._trial_run_id}"
        self._transport = transport
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._pid = os.getpid()
        self._ended: str | None = None
        self._closed = False

    @property
    def session(self) -> Session:
        from determined.common.api import Session

        if self._pid != os.getpid():
            # The parent's sockets, and maybe its locked lock, are not ours.
            self._lock = threading.Lock()
            self._session = None
            self._pid = os.getpid()
        with self._lock:
            if self._session is None:
                self._session = Session(
                    self._info.master_url,
                    self._info.session_token,
                    cookies=self._cookies,
                    transport=self._transport,
                )
            return self._session

    def check(self) -> None:
        """Raise ``errors.AllocationEnded`` if the service has said so."""
        if self._ended is not None:
            raise errors.AllocationEnded(self._ended)

    def call(self, method: str, path: str, **kwargs: Any) -> Any:
        """One request; the parsed JSON of the answer."""
        from determined.common.api.errors import ConflictException
        from determined.common.api.patience import OUTAGE_RETRIES

        self.check()
        # An outage of the service does not end a training.
        kwargs.setdefault("max_retries", OUTAGE_RETRIES)
        try:
            return getattr(self.session, method)(path, **kwargs)
        except ConflictException as error:
            if "has ended" not in error.message:
                raise
            self._ended = (
                f"determined: stopping this process: {error.message} (the trial was killed, or "
                "another process runs it now)"
            )
            raise errors.AllocationEnded(self._ended) from None

    def get(self, path: str, **kwargs: Any) -> Any:
        return self.call("get", path, **kwargs)

    def post(self, path: str, **kwargs: Any) -> Any:
        return self.call("post", path, **kwargs)

    def patch(self, path: str, **kwargs: Any) -> Any:
        return self.call("patch", path, **kwargs)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the session; a long poll of another thread ends with an error."""
        self._closed = True
        if self._session is not None and self._pid == os.getpid():
            self._session.close()
