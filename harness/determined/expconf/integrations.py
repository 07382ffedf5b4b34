"""Settings for other systems: Pachyderm and webhooks."""

from pydantic import Field

from determined.expconf.base import Int, Port, Section


class Pachd(Section):
    """The address of the Pachyderm daemon."""

    host: str | None = Field(None, description="host")
    port: Port | None = Field(None, description="port")


class PachydermProxy(Section):
    """The connection to Pachyderm."""

    scheme: str | None = Field(None, description="scheme")
    host: str | None = Field(None, description="host")
    port: Port | None = Field(None, description="port")


class PachydermDataset(Section):
    """The repository, branch and commit of the data."""

    project: str | None = Field(None, description="project")
    repo: str | None = Field(None, description="repository")
    commit: str | None = Field(None, description="commit")
    branch: str | None = Field(None, description="branch")
    token: str | None = Field(None, description="access token")


class Pachyderm(Section):
    """Versioned data in Pachyderm."""

    pachd: Pachd = Field(default_factory=Pachd, description="the daemon")
    proxy: PachydermProxy = Field(default_factory=PachydermProxy, description="the proxy")
    dataset: PachydermDataset = Field(default_factory=PachydermDataset, description="the data")


class Webhooks(Section):
    """The webhooks this experiment triggers."""

    webhook_id: list[Int] = Field([], description="webhooks by id")
    webhook_name: list[str] = Field([], description="webhooks by name")
    exclude: bool = Field(False, description="trigger no webhook at all")


class Integrations(Section):
    """The ``integrations`` section."""

    pachyderm: Pachyderm | None = Field(None, description="Pachyderm")
    webhooks: Webhooks | None = Field(None, description="webhooks")
