"""MLflow features beyond training, which this platform lacks: traces, data sets of evaluations, scorers,
gateways.

Lists are empty, so that MLflow's pages work. Objects looked up by their id do not exist (404); what would be
kept is refused (403) with a sentence that says what to do instead. MLflow's own store interface raises
NotImplementedError for all of it, which is a 500 that clients ask again for minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlflow.store.entities.paged_list import PagedList
from mlflow.store.model_registry.abstract_store import AbstractStore as RegistryInterface
from mlflow.store.tracking.abstract_store import AbstractStore as TrackingInterface

from determined_registry.mlflow.service import invalid, missing, refuse

_ELSEWHERE = "use a tracking server of MLflow's own for them"
NO_PROMPTS = "prompts are not kept here: send them to a tracking server of MLflow's own"
NO_TRACES = (
    "traces are not kept here: turn them off with mlflow.tracing.disable(), or send them to a tracking "
    "server of MLflow's own"
)
_NO_DATA_SETS = (
    "data sets of evaluations are not kept here: say with mlflow.log_input which data a run used, or "
    f"{_ELSEWHERE}"
)

_REFUSED = {
    NO_TRACES: """
        start_trace log_spans log_spans_async link_traces_to_run unlink_traces_from_run set_trace_tag
        delete_trace_tag link_prompts_to_trace link_mcp_server_versions_to_trace create_assessment
        update_assessment delete_assessment calculate_trace_filter_correlation archive_traces""",
    _NO_DATA_SETS: """
        create_dataset delete_dataset set_dataset_tags delete_dataset_tag upsert_dataset_records
        delete_dataset_records add_dataset_to_experiments remove_dataset_from_experiments""",
    f"scorers are not kept here: {_ELSEWHERE}": """
        register_scorer delete_scorer upsert_online_scoring_config""",
    f"issues, label schemas and review queues are not kept here: {_ELSEWHERE}": """
        create_issue update_issue create_label_schema update_label_schema delete_label_schema
        create_review_queue update_review_queue delete_review_queue get_or_create_user_queue
        add_items_to_review_queue remove_items_from_review_queue set_review_queue_item_status""",
    f"gateways and their secrets are closed on this cluster: {_ELSEWHERE}": """
        create_gateway_endpoint update_gateway_endpoint delete_gateway_endpoint set_gateway_endpoint_tag
        delete_gateway_endpoint_tag attach_model_to_endpoint detach_model_from_endpoint
        create_gateway_model_definition update_gateway_model_definition delete_gateway_model_definition
        create_gateway_secret update_gateway_secret delete_gateway_secret create_gateway_guardrail
        delete_gateway_guardrail add_guardrail_to_endpoint remove_guardrail_from_endpoint
        update_endpoint_guardrail_config create_endpoint_binding delete_endpoint_binding
        create_budget_policy update_budget_policy delete_budget_policy""",
    f"MCP servers are not kept here: {_ELSEWHERE}": """
        create_mcp_server update_mcp_server delete_mcp_server set_mcp_server_tag delete_mcp_server_tag
        create_mcp_server_version update_mcp_server_version delete_mcp_server_version
        set_mcp_server_version_tag delete_mcp_server_version_tag set_mcp_server_alias
        delete_mcp_server_alias create_mcp_access_endpoint update_mcp_access_endpoint
        delete_mcp_access_endpoint""",
}
_MISSING = """
    get_trace get_trace_info get_assessment get_dataset get_scorer get_issue get_label_schema
    get_label_schema_by_name get_review_queue get_review_queue_by_name get_gateway_endpoint
    get_gateway_guardrail get_gateway_model_definition get_secret_info get_budget_policy get_mcp_server
    get_mcp_server_version get_latest_mcp_server_version get_mcp_server_version_by_alias
    get_mcp_access_endpoint"""
_LISTS = """
    _load_dataset_records get_dataset_experiment_ids batch_get_traces batch_get_trace_infos
    find_completed_sessions get_online_trace_details get_mcp_server_versions_for_trace list_scorers
    list_scorer_versions list_scorers_across_experiments get_online_scoring_configs
    get_active_online_scorers list_gateway_endpoints list_secret_infos list_gateway_model_definitions
    list_endpoint_bindings list_endpoint_guardrail_configs"""
_PAGES = """
    search_datasets query_trace_metrics search_issues list_label_schemas list_review_queues
    list_review_queue_items list_gateway_guardrails list_budget_policies search_mcp_servers
    search_mcp_server_versions search_mcp_access_endpoints"""
_MISSING_IN_REGISTRY = "get_webhook"
_PAGES_IN_REGISTRY = "list_webhooks list_webhooks_by_event"
_REFUSED_IN_REGISTRY = {
    NO_PROMPTS: "create_prompt",
    f"webhooks of MLflow's are closed on this cluster: {_ELSEWHERE}": """
        create_webhook update_webhook delete_webhook test_webhook""",
}


def _refused(sentence: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Raises MlflowException (403; of traces 400)."""
        if sentence == NO_TRACES:
            # At a 403 MLflow's client prints that a login to Databricks has expired, and drops this sentence.
            raise invalid(sentence)
        refuse(sentence)

    return method


def _missing(name: str) -> Callable[..., Any]:
    what = name.removeprefix("get_").replace("_", " ")

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Raises MlflowException (404)."""
        raise missing(" ".join([what, *(str(one) for one in (*args, *kwargs.values()))]))

    return method


def _no_list(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return []


def _no_page(self: Any, *args: Any, **kwargs: Any) -> PagedList[Any]:
    return PagedList([], None)


class Absent(TrackingInterface):
    """The methods of a tracking store that have nothing to answer from."""

    def search_traces(self, *args: Any, **kwargs: Any) -> tuple[list[Any], None]:
        return [], None

    def _delete_traces(self, *args: Any, **kwargs: Any) -> int:
        return 0

    def sum_gateway_trace_cost(self, *args: Any, **kwargs: Any) -> float:
        return 0.0


class AbsentFromRegistry(RegistryInterface):
    """The methods of a registry store that have nothing to answer from."""


def _fill(
    store: type, refused: dict[str, str], missing_ones: str, pages: str, lists: str = ""
) -> None:
    made = {
        name: _refused(sentence) for sentence, listed in refused.items() for name in listed.split()
    }
    made |= {name: _missing(name) for name in missing_ones.split()}
    made |= dict.fromkeys(pages.split(), _no_page)
    made |= dict.fromkeys(lists.split(), _no_list)
    for name, method in made.items():
        setattr(store, name, method)


_fill(Absent, _REFUSED, _MISSING, _PAGES, _LISTS)
_fill(AbsentFromRegistry, _REFUSED_IN_REGISTRY, _MISSING_IN_REGISTRY, _PAGES_IN_REGISTRY)
