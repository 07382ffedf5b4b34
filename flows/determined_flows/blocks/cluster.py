"""The block that names the cluster which blocks ask, and the user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prefect.blocks.core import Block
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL
from pydantic import Field, SecretStr

from determined.common import master
from determined.common.api import Session, authentication


class DeterminedCluster(Block):
    """A cluster and a login at it. Prefect stores the password and the token encrypted.

    With neither a user nor a token the login of the machine that runs the flow counts (``det user login``,
    ``DET_USER`` and ``DET_PASS``, or the local cluster of this account).
    """

    _block_type_name = "Determined Cluster"
    _block_type_slug = "determined-cluster"
    _description = "The address of a cluster, and a login at it."

    master: str | None = Field(
        default=None,
        title="Address",
        description="Such as http://host:8080; nothing: DET_MASTER, or the local cluster.",
    )
    user: str | None = Field(default=None, description="The name of a user of the cluster.")
    password: SecretStr | None = Field(default=None, description="The password of that user.")
    token: SecretStr | None = Field(
        default=None, description="A token instead of a user and a password."
    )

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """A session with the service, open within the block.

        Raises ValueError when the login is incomplete, UnauthenticatedException when it is refused,
        MasterNotFoundException when nothing answers.
        """
        _say_if_temporary()
        with self._open() as session:
            yield session

    def _open(self) -> Session:
        if self.token is not None:
            return Session(master.find(self.master).url, self.token.get_secret_value())
        if (self.user is None) != (self.password is None):
            raise ValueError(
                f"the block {self._block_type_name!r} names a user without a password, or a password "
                "without a user: give both, or only a token, or nothing"
            )
        password = None if self.password is None else self.password.get_secret_value()
        return authentication.connect(self.master, self.user, password)


_told: set[object] = set()
"""The flow runs that have been told where they are."""


def _say_if_temporary() -> None:
    """Warns, once, in a flow run that is at a Prefect server which this process has started for itself."""
    context = FlowRunContext.get()
    if PREFECT_API_URL.value() or context is None or context.flow_run is None:
        return
    if context.flow_run.id not in _told:
        _told.add(context.flow_run.id)
        get_run_logger().warning(
            "PREFECT_API_URL is not set: this flow runs at a temporary Prefect server and is not "
            "on the cluster's page. For the local cluster's Prefect, first: "
            'eval "$(det prefect env)"'
        )


HERE = DeterminedCluster()
"""The cluster and the login of the machine that runs the flow."""
