"""The requests that users without administrator's rights may send to Prefect's server through the service."""

import pytest

from determined_service.prefect import visitors

LOOKS = """
GET flows/7 | GET flow_runs/7 | GET flow_runs/7/graph-v2 | GET flow_runs/7/logs/download | GET task_runs/7
GET flow_run_states/ | GET deployments/name/experiment/experiment | GET deployments/7/schedules
GET artifacts/7 | GET artifacts/best model/latest | GET events/filter/next | GET work_pools/gpu
GET work_pools/gpu/queues/default | GET work_queues/7/status | GET v2/concurrency_limits/name | GET version
GET health | GET ready | GET csrf-token | GET admin/settings | GET admin/version
GET block_types/slug/secret | GET collections/views/aggregate-worker-metadata
POST flow_runs/filter | POST flow_runs/count | POST flow_runs/history | POST flow_runs/lateness
POST flow_runs/paginate | POST flows/paginate | POST deployments/filter | POST task_runs/filter
POST artifacts/latest/filter | POST artifacts/latest/count | POST logs/filter | POST events/filter
POST events/count-by/time | POST work_pools/filter | POST work_pools/gpu/queues/filter
POST work_pools/gpu/workers/filter | POST work_pools/gpu/concurrency_status
POST v2/concurrency_limits/filter | POST ui/flow_runs/history | POST ui/flow_runs/count-task-runs
POST ui/flows/count-deployments
POST ui/flows/next-runs | POST ui/task_runs/dashboard/counts | POST saved_searches/filter
"""
MAY_NOT = """
POST flow_runs/ | POST flow_runs/7/set_state | POST flow_runs/7/resume | POST flow_runs/bulk_set_state
POST flow_runs/7/input | GET flow_runs/7/input/key | POST flow_runs/7/input/filter | DELETE flow_runs/7
PATCH flow_runs/7 | POST deployments/ | POST deployments/7/create_flow_run | PATCH deployments/7
POST deployments/7/schedule | POST deployments/get_scheduled_flow_runs | POST deployments/bulk_delete
POST work_pools/ | POST work_pools/gpu/get_scheduled_flow_runs | POST work_pools/gpu/workers/heartbeat
POST work_queues/7/get_runs | PATCH work_pools/gpu | PUT concurrency_limits/7 | POST logs/ | POST events
POST block_documents/ | POST block_documents/filter | POST block_documents/count | GET block_documents/7
GET block_types/slug/secret/block_documents | GET block_types/slug/secret/block_documents/name/x
POST block_types/install_system_block_types | POST variables/filter
GET variables/name/token | GET variables/7 | POST automations/filter | GET automations/7 | POST automations/
POST templates/validate
POST concurrency_limits/increment | POST v2/concurrency_limits/leases/7/renew | GET admin/storage
POST flow_runs/7/set_state#/filter | POST flow_runs/7/set_state?/filter | POST flow_runs/set state/filter
PUT flow_runs/filter | GET unknown | GET | GET docs | POST
"""


def asked(table: str) -> list[tuple[str, str]]:
    found = (
        one.split(maxsplit=1)
        for line in table.splitlines()
        for one in line.split("|")
        if one.strip()
    )
    return [(one[0], f"api/{one[1].strip()}" if len(one) > 1 else "api") for one in found]


@pytest.mark.parametrize(("method", "path"), asked(LOOKS))
def test_looks(method, path):
    assert visitors.may_look(method, path)


@pytest.mark.parametrize(("method", "path"), asked(MAY_NOT))
def test_may_not(method, path):
    assert not visitors.may_look(method, path)


@pytest.mark.parametrize(
    "path", ["", "runs/flow-run/7", "assets/index.js", "ui-settings", "v2/dashboard"]
)
def test_the_page_itself(path):
    assert visitors.is_page(path)
    assert visitors.may_look("GET", path) and not visitors.may_look("POST", path)


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("x/../api/admin/storage", "/prefect/x/%2e%2e/api/admin/storage"),
        ("assets//api", "/prefect/assets//api"),
        ("/api/flows", "/prefect//api/flows"),
        ("api/flow_runs/7/set_state#/filter", "/prefect/api/flow_runs/7/set_state#/filter"),
        ("x\\..\\api", "/prefect/x%5C..%5Capi"),
    ],
)
def test_an_ambiguous_address_is_refused(path, raw):
    assert not visitors.is_plain(path, raw)
    assert visitors.is_plain("api/flows/name/a#b", "/prefect/api/flows/name/a%23b")


def test_fields_that_may_hold_secrets_are_empty():
    run = {
        "name": "r",
        "parameters": {"config": "password: x"},
        "job_variables": {"env": {"A": "b"}},
    }
    queue = {"work_pool": {"base_job_template": {"env": {"A": "b"}}, "type": "process"}}
    assert visitors.without_secrets([run, {"results": [queue], "parameters": None}]) == [
        {"name": "r", "parameters": {}, "job_variables": {}},
        {
            "results": [{"work_pool": {"base_job_template": {}, "type": "process"}}],
            "parameters": None,
        },
    ]
