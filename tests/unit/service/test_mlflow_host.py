"""The addresses of pages, and the host to which their cookies are bound."""

from types import SimpleNamespace

import pytest
from starlette.requests import Request
from starlette.responses import Response

from determined_service.access import browser
from determined_service.base import hosts
from determined_service.base.pages import elsewhere
from determined_service.proxy import names
from determined_service.proxy.http_protocol import is_for_task
from determined_service.proxy.names import Key

DOMAIN = "https://*.tasks.example.net:8443"


def settings(proxy_host):
    return SimpleNamespace(proxy_host=proxy_host)


@pytest.mark.parametrize(
    ("proxy_host", "host", "found"),
    [
        (None, "127.0.0.1:8080", "http://mlflow.localhost:8080"),
        (None, "LocalHost", "http://mlflow.localhost"),
        (None, "[::1]:8080", "http://mlflow.localhost:8080"),
        (None, "mlflow.localhost:8080", None),
        (None, "MLflow.localhost", None),
        (None, "10.0.0.5:8080", None),
        (None, "localhost.example.com", None),
        (None, "", None),
        (DOMAIN, "det.example.com", "https://mlflow.tasks.example.net:8443"),
        (DOMAIN, "127.0.0.1:8080", "https://mlflow.tasks.example.net:8443"),
        (DOMAIN, "mlflow.tasks.example.net:8443", None),
        ("", "127.0.0.1:8080", None),
    ],
)
def test_the_addresses_of_the_pages(proxy_host, host, found):
    assert elsewhere(settings(proxy_host), hosts.MLFLOW, host) == found


def test_no_task_has_their_host_name():
    for label in hosts.PAGES:
        assert Key(label).label is None and names.of_label(label) is None
    assert names.of_label("mlflow---80") == Key("mlflow", "80")
    ask = b"GET /mlflow/ HTTP/1.1\r\nHost: %b:8080\r\n\r\n"
    assert is_for_task(ask % b"MLflow.localhost", b"localhost") is False
    assert is_for_task(ask % b"prefect.localhost", b"localhost") is False
    assert is_for_task(ask % b"det.localhost", b"localhost") is False
    assert is_for_task(ask % b"mlflow---80.localhost", b"localhost") is True
    assert is_for_task(ask % b"a.mlflow.localhost", b"localhost") is True


@pytest.mark.parametrize(
    ("of", "scheme", "begins", "holds"),
    [
        (browser.MLFLOW, "http", "determined-session=t; ", "path=/mlflow; samesite=lax"),
        (browser.MLFLOW, "https", "__host-determined-session=t; ", "path=/; samesite=lax; secure"),
        (browser.FRONT, "http", "determined-front=t; ", "path=/det; samesite=lax"),
        (browser.FRONT, "https", "__host-determined-front=t; ", "path=/; samesite=lax; secure"),
    ],
)
def test_the_cookie_is_bound_to_the_host_name(of, scheme, begins, holds):
    scope = {"type": "http", "scheme": scheme, "path": "/mlflow/", "query_string": b""}
    request = Request({**scope, "headers": [(b"host", b"mlflow.x")], "server": ("mlflow.x", 443)})
    answer = Response()
    of.keep(answer, request, "t")
    given = answer.headers["set-cookie"].lower()
    assert given.startswith(begins) and given.endswith(holds)
    assert "httponly" in given and "domain" not in given
