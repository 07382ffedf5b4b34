"""The environment of the training process: image, variables, ports, credentials, pod."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from determined.expconf import legacy
from determined.expconf.base import AlsoAccepts, Port, Section

#: An empty name (before the "=") is a mistake; an empty value (after it) is allowed.
VARIABLE = r"^[^=]+="
Variable = Annotated[str, Field(pattern=VARIABLE)]


class Images(Section):
    """Container image per kind of device.

    The defaults are those that Determined's published client filled in last (0.21), as scripts read and
    compare them. They lack this harness: agents that run containers take their own image instead.
    """

    cpu: str = Field(
        "determinedai/environments:py-3.8-pytorch-1.12-tf-2.8-cpu-835d8b1",
        description="image on machines without accelerator",
    )
    cuda: str = Field(
        "determinedai/environments:cuda-11.3-pytorch-1.12-tf-2.8-gpu-835d8b1",
        description="image on machines with NVIDIA GPUs",
    )
    rocm: str = Field(
        "determinedai/environments:rocm-5.0-pytorch-1.10-tf-2.7-rocm-835d8b1",
        description="image on machines with AMD GPUs",
    )


class Variables(Section):
    """Environment variables per kind of device."""

    cpu: list[Variable] = Field([], description="on machines without accelerator")
    cuda: list[Variable] = Field([], description="on machines with NVIDIA GPUs")
    rocm: list[Variable] = Field([], description="on machines with AMD GPUs")


class ProxyPort(Section):
    """A port of the trial that can be reached through the service."""

    proxy_port: Port = Field(description="the port")
    proxy_tcp: bool = Field(False, description="whether the port speaks a protocol other than HTTP")
    unauthenticated: bool = Field(False, description="whether connections need no login")
    default_service_id: bool = Field(
        False, description="whether the port is the task's own address"
    )


class RegistryAuth(Section):
    """Credentials for the image registry."""

    username: str | None = Field(None, description="user name")
    password: str | None = Field(None, description="password")
    auth: str | None = Field(None, description="user name and password, encoded")
    email: str | None = Field(None, description="e-mail address")
    serveraddress: str | None = Field(None, description="address of the registry")
    identitytoken: str | None = Field(None, description="token that is exchanged for access tokens")
    registrytoken: str | None = Field(None, description="token sent to the registry")


_LIST = {"type": "array", "items": {"type": "string"}}


class Environment(Section):
    """The ``environment`` section."""

    image: Annotated[
        Images,
        BeforeValidator(legacy.images),
        AlsoAccepts({"type": "string"}),
        AlsoAccepts(legacy.gpu_schema({"type": ["string", "null"]})),
    ] = Field(default_factory=Images, description="container image, or one per kind of device")
    environment_variables: Annotated[
        Variables,
        BeforeValidator(legacy.environment_variables),
        AlsoAccepts(_LIST),
        AlsoAccepts(legacy.gpu_schema({"anyOf": [_LIST, {"type": "null"}]})),
    ] = Field(default_factory=Variables, description="NAME=VALUE, in a list or per kind of device")
    proxy_ports: list[ProxyPort] = Field([], description="ports reachable through the service")
    ports: dict[str, Port] = Field({}, description="ports by name")
    force_pull_image: bool = Field(False, description="fetch the image even if the machine has it")
    registry_auth: RegistryAuth | None = Field(None, description="registry credentials")
    add_capabilities: list[str] = Field([], description="Linux capabilities to add")
    drop_capabilities: list[str] = Field([], description="Linux capabilities to remove")
    pod_spec: dict[str, Any] | None = Field(None, description="Kubernetes Pod to start from")
