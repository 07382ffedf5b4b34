"""Registers one deployment of ``prefect.yaml``, with the function behind ``prefect deploy``.

Prefect keeps a record of each registered deployment, in a separate variable. An entry that says the same as
at its last registration is left alone, even if people have changed it in Prefect. A plain entry
(:mod:`plain_entries`) that is new is created with two calls; the function makes a dozen.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from determined_deployments import registered_schedules
from determined_deployments.prefect_yaml import DeploymentEntry
from determined_deployments.registered_schedules import digest

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

logger = logging.getLogger(__name__)

KEPT = ("paused", "concurrency_limit", "tags", "parameters")
"""Settings that people may change in Prefect: an update keeps them, unless the file gives or gave them."""


@dataclass(frozen=True)
class RegistrationRecord:
    """The record of a deployment's last registration. ``entry`` is a digest of the whole entry.

    ``schedules``: ids in Prefect by their names in the file; ``given``: the keys of the file's entry;
    ``fingerprint``: of a plain entry, else empty.
    """

    deployment_id: str
    entry: str
    schedules: dict[str, str]
    triggers: str
    given: list[str] = field(default_factory=list)
    fingerprint: str = ""

    @classmethod
    def of_value(cls, value: object) -> RegistrationRecord | None:
        """The record, or None when this is none that can be used."""
        try:
            return cls(**value) if isinstance(value, dict) else None
        except TypeError:
            return None

    @classmethod
    async def read(cls, client: PrefectClient, name: str) -> RegistrationRecord | None:
        """The record, or None when there is none that can be used."""
        variable = await client.read_variable_by_name(_variable(name))
        return cls.of_value(variable.value) if variable is not None else None

    async def write(self, client: PrefectClient, name: str) -> None:
        from prefect.client.schemas.actions import VariableCreate, VariableUpdate
        from prefect.exceptions import ObjectAlreadyExists

        variable = _variable(name)
        try:
            await client.create_variable(
                VariableCreate(name=variable, value=asdict(self), tags=RECORD_TAGS)
            )
        except ObjectAlreadyExists:
            await client.update_variable(VariableUpdate(name=variable, value=asdict(self)))


RECORD_TAGS = ["determined", "prefect.yaml"]
MOST = 200
"""The records that one question brings. A deployment beyond them is looked up by its name."""


@dataclass(frozen=True)
class RegistrationState:
    """Prefect's state when the registration began, read with two questions.

    ``records``: by their variables' names; ``deployments``: the names of ids.
    """

    records: dict[str, RegistrationRecord]
    deployments: dict[str, str]

    @classmethod
    async def read(cls, client: PrefectClient, names: Iterable[str]) -> RegistrationState:
        """``names``: of deployments, without those of their flows."""
        from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName

        tagged = {"tags": {"all_": RECORD_TAGS}}
        body = {"variables": tagged, "limit": MOST}
        answer = await client.request("POST", "/variables/filter", json=body)
        named = DeploymentFilter(name=DeploymentFilterName(any_=list(names)))
        found = await client.read_deployments(deployment_filter=named)
        records = {
            item["name"]: RegistrationRecord.of_value(item["value"]) for item in answer.json()
        }
        return cls(
            {name: record for name, record in records.items() if record is not None},
            {str(deployment.id): deployment.name for deployment in found},
        )

    def find(self, fingerprint: str) -> UUID | None:
        """The deployment of the plain entry with this fingerprint, if it is registered and still there."""
        for record in self.records.values():
            if record.fingerprint == fingerprint and record.deployment_id in self.deployments:
                return UUID(record.deployment_id)
        return None


def _variable(name: str) -> str:
    return f"determined-deployment-{digest(name)[:16]}"


async def register_entry(
    client: PrefectClient, entry: DeploymentEntry, state: RegistrationState
) -> tuple[str, UUID, RegistrationRecord | None]:
    """Creates or updates the deployment; returns its full name and id. The working directory must be the
    file's.

    The record is returned when it is still to be written. Raises Prefect's errors, and those of importing
    the flow.
    """
    from prefect.exceptions import ObjectNotFound
    from prefect.flows import load_flow_from_entrypoint

    print_ = entry.fingerprint
    resolved = entry.config if print_ else await _resolved(entry)
    flow: Any = load_flow_from_entrypoint(resolved["entrypoint"])
    name = f"{flow.name}/{resolved['name']}"
    if print_ and (known := state.find(print_)) is not None:
        return name, known, None
    schedules = resolved.get("schedules") or []
    parts = [print_] if print_ else [resolved, entry.config, entry.actions, _place(entry)]
    says = digest([*parts, _interface(flow)])
    given = [key for key, value in entry.config.items() if value is not None]
    triggers = digest(entry.config.get("triggers"))
    if print_ and resolved["name"] not in state.deployments.values():
        deployment_id = await _create_plain(client, entry, flow)
        logger.info("deployment %s registered", name)
        return (
            name,
            deployment_id,
            RegistrationRecord(str(deployment_id), says, {}, triggers, given, print_),
        )
    record = await RegistrationRecord.read(client, name)
    try:
        existing = await client.read_deployment_by_name(name)
    except ObjectNotFound:
        await _deploy(client, entry.config, entry)
        deployment_id = (await client.read_deployment_by_name(name)).id
        ids = await registered_schedules.note(client, deployment_id, schedules)
        logger.info("deployment %s registered", name)
    else:
        deployment_id = existing.id
        if record is not None and record.deployment_id != str(deployment_id):
            record = None  # of a deployment that was deleted meanwhile
        if record is not None and record.entry == says:
            return name, deployment_id, None
        for item in schedules:
            registered_schedules.build(item)  # a mistake in one keeps all as it is
        await _update(client, entry, existing, record)
        before = record.schedules if record is not None else None
        ids = await registered_schedules.reconcile(client, deployment_id, schedules, before)
        logger.info("deployment %s updated", name)
    record = RegistrationRecord(str(deployment_id), says, ids, triggers, given, print_ or "")
    await record.write(client, name)
    return name, deployment_id, None


async def _create_plain(client: PrefectClient, entry: DeploymentEntry, flow: Any) -> UUID:
    """Create a new plain entry as `prefect deploy` would.

    The version is the flow's own: Prefect's command would ask git for the commit where there is a remote.
    """
    from prefect.client.schemas.objects import VersionInfo
    from prefect.utilities.callables import parameter_schema

    config = entry.config
    directory = {"directory": _place(entry)}
    created: UUID = await client.create_deployment(
        flow_id=await client.create_flow_from_name(flow.name),
        name=config["name"],
        version=flow.version,
        version_info=VersionInfo(type="prefect:simple", version=flow.version),
        paused=False,
        description=config.get("description") or flow.description,
        tags=config.get("tags") or [],
        entrypoint=config["entrypoint"],
        parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
        enforce_parameter_schema=True,
        work_pool_name=config["work_pool"]["name"],
        pull_steps=[{"prefect.deployments.steps.set_working_directory": directory}],
    )
    return created


async def _resolved(entry: DeploymentEntry) -> dict[str, Any]:
    """The entry with Prefect's variables, blocks and the environment put in, as `prefect deploy` does."""
    from prefect.cli.deploy._config import (
        _handle_deprecated_schedule_fields,
        _merge_with_default_deploy_config,
    )
    from prefect.utilities.templating import (
        apply_values,
        resolve_block_document_references,
        resolve_variables,
    )

    config: Any = _handle_deprecated_schedule_fields(
        _merge_with_default_deploy_config(entry.config)
    )
    config = await resolve_block_document_references(config)
    config = await resolve_variables(config)
    resolved: Any = apply_values(config, dict(os.environ), remove_notset=False)
    return dict(resolved)


def _place(entry: DeploymentEntry) -> str | None:
    """The directory that Prefect notes for runs, if the file gives no pull steps."""
    pull = entry.config["pull"] if "pull" in entry.config else entry.actions["pull"]
    return str(Path.cwd()) if pull is None or pull == {} else None


def _interface(flow: Any) -> list[Any]:
    """The parts of a flow that its deployment takes over."""
    from prefect.utilities.callables import parameter_schema

    return [flow.description, flow.version, parameter_schema(flow).model_dump()]


async def _deploy(client: PrefectClient, config: Mapping[str, Any], entry: DeploymentEntry) -> None:
    from prefect.cli.deploy._core import _run_single_deploy
    from rich.console import Console

    output = io.StringIO()
    try:
        await _run_single_deploy(
            dict(config),
            entry.actions,
            client=client,
            prefect_file=entry.path,
            console=Console(file=output, width=120),
            is_interactive=lambda: False,
        )
    finally:
        logger.debug("%s", output.getvalue())


async def _update(
    client: PrefectClient,
    entry: DeploymentEntry,
    existing: DeploymentResponse,
    record: RegistrationRecord | None,
) -> None:
    """Update everything except the schedules."""
    config = deepcopy(entry.config)
    # The schedules are brought together afterwards; without any here, Prefect leaves them.
    config.pop("schedule", None)
    config["schedules"] = []
    theirs = _kept(config, existing, record)
    # Before the update: Prefect would take the limit, and the slots in use, away for a moment.
    config.update({key: theirs[key] for key in ("paused", "concurrency_limit") if key in theirs})
    switched_off = await _switched_off(client, existing, entry, record)
    await _deploy(client, config, entry)
    await _set_kept(client, existing.id, theirs)
    await _switch_off(client, existing, entry, switched_off)


def _kept(
    config: Mapping[str, Any], existing: DeploymentResponse, record: RegistrationRecord | None
) -> dict[str, Any]:
    """Settings that people made in Prefect and the file does not mention."""
    given = {key for key in config if config[key] is not None}
    given |= set(record.given) if record is not None else set()
    limit: Any = None
    if existing.global_concurrency_limit is not None:
        limit = existing.global_concurrency_limit.limit
        if existing.concurrency_options is not None:
            limit = {"limit": limit, **existing.concurrency_options.model_dump(mode="json")}
    there: dict[str, Any] = {
        "paused": existing.paused,
        "tags": existing.tags,
        "parameters": existing.parameters,
        "concurrency_limit": limit,
    }
    return {key: there[key] for key in KEPT if key not in given and there[key]}


async def _set_kept(client: PrefectClient, deployment_id: UUID, kept: Mapping[str, Any]) -> None:
    from prefect.client.schemas.actions import DeploymentUpdate

    # Not by way of the entry: there, braces in a parameter would be taken for a template.
    changes = {key: kept[key] for key in ("tags", "parameters") if key in kept}
    if changes:
        await client.update_deployment(deployment_id, DeploymentUpdate(**changes))


async def _of_triggers(
    client: PrefectClient, existing: DeploymentResponse, entry: DeploymentEntry
) -> list[Any]:
    """The automations that were made from the entry's triggers. Prefect does not say which it owns, but
    it names them."""
    triggers = entry.config.get("triggers") or []
    made = f"{existing.name}__automation_"
    names = {item.get("name") or f"{made}{number}" for number, item in enumerate(triggers, 1)}
    related = await client.read_resource_related_automations(f"prefect.deployment.{existing.id}")
    return [automation for automation in related if automation.name in names]


async def _switched_off(
    client: PrefectClient,
    existing: DeploymentResponse,
    entry: DeploymentEntry,
    record: RegistrationRecord | None,
) -> set[str]:
    """The automations that were switched off in Prefect, unless the file changes its triggers."""
    if record is not None and record.triggers != digest(entry.config.get("triggers")):
        return set()
    automations = await _of_triggers(client, existing, entry)
    return {automation.name for automation in automations if not automation.enabled}


async def _switch_off(
    client: PrefectClient, existing: DeploymentResponse, entry: DeploymentEntry, names: set[str]
) -> None:
    for automation in await _of_triggers(client, existing, entry) if names else ():
        if automation.name in names and automation.enabled:
            await client.pause_automation(automation.id)
