"""The state that all commands share: the root options, the service's address, the login."""

from __future__ import annotations

import getpass
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.common.api.authentication import AskPassword
    from determined.common.api.transport import AnyTransport
    from determined.common.master import MasterAddress
    from determined.experimental import Determined
    from determined.experimental._access_token import AccessTokenVerbs
    from determined.experimental._cluster import ClusterVerbs
    from determined.experimental._config_policy import ConfigPolicyVerbs
    from determined.experimental._experiment_verbs import ExperimentVerbs
    from determined.experimental._model import ModelVerbs
    from determined.experimental._people import PeopleVerbs
    from determined.experimental._task import TaskVerbs
    from determined.experimental._template import TemplateVerbs
    from determined.experimental._user import UserVerbs
    from determined.experimental._workspace import WorkspaceVerbs


@dataclass
class State:
    """The root options; ``transport`` replaces the network in tests.

    ``says_message``: the message of the cluster is said when the session begins; not while words are
    completed.
    """

    master: str | None = None
    user: str | None = None
    verbose: bool = False
    says_message: bool = False
    transport: AnyTransport | None = None

    @cached_property
    def address(self) -> MasterAddress:
        """The service's address. Raises CliError for an invalid one."""
        from determined.cli.errors import CliError
        from determined.common import master

        try:
            return master.find(self.master)
        except ValueError as error:
            raise CliError(str(error)) from error

    @property
    def origin(self) -> str | None:
        """Where the address comes from, in words; None if there is no valid address."""
        from determined.common.master import AddressSource

        try:
            address = self.address
        except Exception:  # the error that is being reported
            return None
        if address.source is AddressSource.ARGUMENT:
            return "the address comes from -m"
        if address.source is AddressSource.ENVIRONMENT:
            return f"the address comes from the variable {address.variable}"
        if address.source is AddressSource.LOCAL_CLUSTER and address.local is not None:
            return f"the address of the local cluster in {address.local.data_dir}"
        return (
            "the default address: -m, DET_MASTER and DET_MASTER_ADDR are not set, and this user has no"
            " local cluster"
        )

    @property
    def has_admin(self) -> bool:
        """Whether nobody was named, and ``-u admin`` logs in from the local cluster's record."""
        try:
            local = self.address.local
        except Exception:  # the error that is being reported
            return False
        return self.user is None and local is not None and "admin" in local.passwords

    @cached_property
    def master_info(self) -> dict[str, Any]:
        """The service's public description of itself.

        Raises MasterNotFoundException if the service does not answer within seconds.
        """
        from determined.common.api import Session

        with Session(
            self.address.url, timeout=5.0, max_retries=0, transport=self.transport
        ) as session:
            found = session.get("/api/v1/master")
        # Another program may listen there and answer with any JSON.
        return found if isinstance(found, dict) else {}

    def forget_address(self) -> None:
        """Forgets the address: a local cluster that was just started has a new one."""
        for name in ("address", "master_info"):
            self.__dict__.pop(name, None)

    @cached_property
    def session(self) -> Session:
        """A session that is logged in; the login happens at the first use."""
        from determined.cli import cluster_message
        from determined.common.api import authentication

        found = authentication.connect(
            self.address, self.user, ask=_asker(), transport=self.transport
        )
        if self.says_message:
            cluster_message.say(found)
        return found

    @cached_property
    def client(self) -> Determined:
        """The SDK's client on :attr:`session`."""
        from determined.experimental import Determined

        return Determined._with_session(self.session)

    @cached_property
    def username(self) -> str:
        """The name of the user who is logged in."""
        from determined.common.api import authentication

        return self.session.username or str(authentication.current_user(self.session)["username"])

    # Parts of :attr:`client`, each without the time that the import of the rest takes.

    @cached_property
    def experiments(self) -> ExperimentVerbs:
        """What :attr:`client` does with experiments."""
        from determined.experimental._experiment_verbs import ExperimentVerbs

        return ExperimentVerbs(self.session)

    @cached_property
    def models(self) -> ModelVerbs:
        """What :attr:`client` does with models."""
        from determined.experimental._model import ModelVerbs

        return ModelVerbs(self.session)

    @cached_property
    def users(self) -> UserVerbs:
        """What :attr:`client` does with users."""
        from determined.experimental._user import UserVerbs

        return UserVerbs(self.session)

    @cached_property
    def people(self) -> PeopleVerbs:
        """Groups of users, and roles."""
        from determined.experimental._people import PeopleVerbs

        return PeopleVerbs(self.session)

    @cached_property
    def tasks(self) -> TaskVerbs:
        """What :attr:`client` does with tasks."""
        from determined.experimental._task import TaskVerbs

        return TaskVerbs(self.session)

    @cached_property
    def templates(self) -> TemplateVerbs:
        """What :attr:`client` does with templates."""
        from determined.experimental._template import TemplateVerbs

        return TemplateVerbs(self.session)

    @cached_property
    def config_policies(self) -> ConfigPolicyVerbs:
        """What holds for all configurations of a workspace, or of the cluster."""
        from determined.experimental._config_policy import ConfigPolicyVerbs

        return ConfigPolicyVerbs(self.session)

    @cached_property
    def access_tokens(self) -> AccessTokenVerbs:
        """What :attr:`client` does with access tokens."""
        from determined.experimental._access_token import AccessTokenVerbs

        return AccessTokenVerbs(self.session)

    @cached_property
    def workspaces(self) -> WorkspaceVerbs:
        """What :attr:`client` does with workspaces."""
        from determined.experimental._workspace import WorkspaceVerbs

        return WorkspaceVerbs(self.session)

    @cached_property
    def cluster(self) -> ClusterVerbs:
        """What :attr:`client` does with the cluster."""
        from determined.experimental._cluster import ClusterVerbs

        return ClusterVerbs(self.session)


def state(ctx: typer.Context) -> State:
    """The shared state of this invocation."""
    found = ctx.find_object(State)
    assert found is not None
    return found


def _ask_password(user: str) -> str:
    return getpass.getpass(f"Password for user {user!r}: ")


def _asker() -> AskPassword | None:
    """The function that asks the user for a password; None without a terminal."""
    return _ask_password if sys.stdin.isatty() and sys.stderr.isatty() else None
