"""``kubernetes`` in the agent's settings: where pods run, and what every pod gets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from determined.expconf import pod_spec
from determined.expconf.paths import render

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
DNS_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
MAX_SLOTS = 100_000
STORAGE_SECRET_DIR = "/run/secrets/determined-storage"
"""Where pods see the files of ``storage_secret``."""

Name = Annotated[str, StringConstraints(pattern=DNS_NAME)]
Quantity = Annotated[str, StringConstraints(pattern=QUANTITY)]
Priority = Annotated[int, Field(ge=1, le=99)]


class SlotResources(BaseModel):
    """``slot_resources``: the requests of a pod for each of its slots; of memory, also the limit."""

    model_config = ConfigDict(extra="forbid")

    cpu: Quantity | None = None
    """Cores, such as ``4`` or ``500m``; also the limit where ``slot_type`` is ``cpu`` (default there: 1)."""
    memory: Quantity | None = None
    """Such as ``16Gi``. None: neither request nor limit."""


class Queueing(BaseModel):
    """``queueing``: a queue or gang scheduler of the cluster that pods are handed to."""

    model_config = ConfigDict(extra="forbid")

    by: Literal["kueue", "volcano", "coscheduling"]
    queue: Name | None = None
    """The LocalQueue of Kueue (required), or the queue of Volcano."""

    @field_validator("queue")
    @classmethod
    def _is_not_of_coscheduling(cls, queue: str | None, info: Any) -> str | None:
        by = info.data.get("by")
        if by == "coscheduling" and queue is not None:
            raise ValueError("the coscheduling plug-in has no queues: leave queue out")
        return queue

    def model_post_init(self, _: Any) -> None:
        if self.by == "kueue" and self.queue is None:
            raise ValueError("kueue needs the name of a LocalQueue of the namespace: set queue")


class Kubernetes(BaseModel):
    """``kubernetes``: for the launcher ``kubernetes``. One agent stands for one resource pool."""

    model_config = ConfigDict(extra="forbid")

    kubeconfig: Path | None = None
    """The file with the API server's address. None: ``KUBECONFIG``, else the account of the agent's own pod,
    else ``~/.kube/config``."""
    context: str | None = None
    """Of the kubeconfig. None: its current one."""
    namespace: Annotated[str, StringConstraints(pattern=DNS_LABEL)] = "default"
    node_selector: dict[str, str] = Field(default_factory=dict)
    """The labels of the pool's nodes. Every pod has them, and no ``pod_spec`` changes them."""
    max_slots: Annotated[int, Field(ge=0, le=MAX_SLOTS)] | None = None
    """The number of slots. None: those of the nodes are counted."""
    unplaced_after: Annotated[float, Field(gt=0)] = 300.0
    """Seconds after which a leg that Kubernetes has not placed goes back into the queue."""
    termination_grace: int = 300
    """Seconds that a pod has for its last checkpoint when Kubernetes ends it."""
    service_account: Name | None = None
    """Of the pods. None: the namespace's default. No pod gets the account's token."""
    image_pull_secrets: list[Name] = Field(default_factory=list)
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Of images. None: Kubernetes decides by the tag. ``force_pull_image`` comes first."""
    slot_resources: SlotResources = Field(default_factory=SlotResources)
    priority_classes: dict[Priority, Name] = Field(default_factory=dict)
    """The class of pods by priority: the entry of the greatest number that the priority reaches. A higher
    number is more important. Empty: pods have none."""
    scheduler_name: Name | None = None
    queueing: Queueing | None = None
    storage_secret: Name | None = None
    """A Secret of the namespace with the credentials of the checkpoint storage: its keys are variables of the
    task's environment, and files in :data:`STORAGE_SECRET_DIR`."""
    requests_per_second: Annotated[float, Field(gt=0, le=1000)] = 20.0
    """Requests to the API server, on average."""
    harness_image: str | None = None
    """With ``container.harness: mounted``: the image whose package and interpreter every pod gets. None: what
    `make images` builds."""
    pod_spec: dict[str, Any] | None = None
    """A pod that every pod of this agent starts from, as ``environment.pod_spec``."""

    @field_validator("termination_grace")
    @classmethod
    def _leaves_time(cls, seconds: int) -> int:
        if seconds < 1:
            raise ValueError(
                f"expected 1 second or more, found {seconds}: a pod that is killed at once stores no"
                " checkpoint, and its task cannot say how it ended"
            )
        return seconds

    @field_validator("pod_spec")
    @classmethod
    def _only_what_may_be_set(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        found = next(pod_spec.refused(given), None) if given is not None else None
        if found is not None:
            path, why = found
            raise ValueError(f"{render(path)}: {why}")
        return given

    def priority_class(self, priority: int) -> str | None:
        """The class of a pod with that priority."""
        reached = [number for number in self.priority_classes if number <= priority]
        return self.priority_classes[max(reached)] if reached else None
