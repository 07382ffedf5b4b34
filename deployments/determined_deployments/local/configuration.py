"""The configuration of a local cluster: checked before anything starts, kept in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from determined.common import cluster_config
from determined.common.cluster_config import ClusterConfig
from determined.common.wire import paths
from determined.common.wire.cluster import ProposedConfig
from determined.expconf import ConfigError
from determined_deployments.local import probe, storage
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout, write_private
from determined_deployments.local.report import ClusterReporter
from determined_deployments.local.state import ClusterState

REFUSAL_S = 5.0
_EMPTY = "{}"


@dataclass(frozen=True)
class ChosenConfiguration:
    """The configuration that is wanted, and its text (None: there is none). ``before``: the text that the
    folder had before it, also where an earlier command was killed while it applied this one."""

    config: ClusterConfig
    text: str | None
    before: str | None


def choose(layout: Layout, option: str | None, reporter: ClusterReporter) -> ChosenConfiguration:
    """Check the wanted configuration and store it in the cluster's folder.

    ``option``: the file given by ``--config``; None: what the folder has; empty: none any more.
    Raises ClusterError with every mistake; then nothing is changed.
    """
    current = kept(layout)
    before = _begun(layout, current)
    path = layout.cluster_config if option is None else Path(option)
    if option == "" or (option is None and current is None):
        _replace(layout, before, None)
        return ChosenConfiguration(ClusterConfig(), None, before)
    try:
        config, remarks = cluster_config.read_file(path)
        text = path.read_text(encoding="utf-8-sig")
    except ConfigError as error:
        what = "its cluster configuration" if option is None else "--config"
        raise ClusterError(f"{what} cannot be used:\n{error}") from None
    if option is not None:
        for remark in remarks:
            reporter.note(str(remark))
    if config.manager_of(config.pool_of_flows).type == "kubernetes":
        raise ClusterError(
            f"{path}: resource_manager.type: a local cluster's agent in resource pool"
            f" {config.pool_of_flows!r} runs processes: leave type out, put the pools on Kubernetes below"
            " additional_resource_managers, and start their agents (docs/operate/pods.md)"
        )
    if why := storage.problem(config):
        what = f"checkpoint_storage: no trial could save a checkpoint there: {why}"
        if option is not None:
            raise ClusterError(f"--config cannot be used:\n{path}: {what}")
        # It may be away for a while: what needs no checkpoint runs.
        reporter.note(f"{path}: {what}")
    if text != current:
        _replace(layout, before, text)
    return ChosenConfiguration(config, text, before)


def kept(layout: Layout) -> str | None:
    """The text of the configuration in the cluster's folder; None: there is none."""
    try:
        return layout.cluster_config.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"cannot read {layout.cluster_config}: {error}") from error


def objection(state: ClusterState, chosen: ChosenConfiguration) -> str:
    """The reason why the running service would refuse the chosen configuration; empty: it would accept it, or
    does not answer."""
    if chosen.text == chosen.before:
        return ""
    body = ProposedConfig(_EMPTY if chosen.text is None else chosen.text).to_json()
    address = f"{state.master_url}{paths.CLUSTER_CONFIG}"
    return _refusal(probe.post(address, body, token=state.agent_token, timeout=REFUSAL_S))


def refusal(state: ClusterState) -> str:
    """The reason why the running service has not put the file into force; empty: it has, or does not
    answer."""
    address = f"{state.master_url}{paths.CLUSTER_CONFIG}"
    return _refusal(probe.get(address, token=state.agent_token, timeout=REFUSAL_S))


def _refusal(answer: Any) -> str:
    return str(answer["refusal"]) if isinstance(answer, dict) else ""


def former(chosen: ChosenConfiguration) -> ClusterConfig:
    """The folder's former configuration. It was in force, so it has no mistake."""
    return cluster_config.read_text(chosen.before)[0] if chosen.before else ClusterConfig()


def put_back(layout: Layout, chosen: ChosenConfiguration) -> None:
    """Restore the folder's former configuration."""
    _keep(layout, chosen.before)
    settle(layout)


def settle(layout: Layout) -> None:
    """Mark the folder's configuration as in force: the next command need not know the former one."""
    layout.earlier_config.unlink(missing_ok=True)


def _begun(layout: Layout, current: str | None) -> str | None:
    """The configuration from before a command that was killed while it applied another one."""
    try:
        return layout.earlier_config.read_text(encoding="utf-8") or None
    except FileNotFoundError:
        return current


def _replace(layout: Layout, before: str | None, text: str | None) -> None:
    """Another text, of which a command that is killed now leaves a trace."""
    write_private(layout.earlier_config, before or "")
    _keep(layout, text)


def _keep(layout: Layout, text: str | None) -> None:
    if text is None:
        layout.cluster_config.unlink(missing_ok=True)
    else:
        write_private(layout.cluster_config, text)
