"""Our processes import Prefect without the parser that jsonschema may want; code that asks for the parser
gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import TIMEOUT_S

LEAN = "from determined.common import lean_jsonschema; lean_jsonschema.import_it();"
LOADED = "import sys; print('rfc3987_syntax' in sys.modules)"


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    return done.stdout.strip()


def test_international_addresses_are_read_as_ever_by_a_parser_that_is_not_imported_before() -> None:
    pytest.importorskip("rfc3987_syntax")
    checks = (
        "from jsonschema import Draft202012Validator as V;"
        "checker = V.FORMAT_CHECKER;"
        "texts = ('https://ö.org/ü', 'no address', 7);"
        "print([checker.conforms(text, 'iri') for text in texts]);"
        "import rfc3987_syntax.syntax_helpers as s; print(bool(s.parse))"
    )
    assert run(f"{LEAN} {LOADED}; {checks}").splitlines() == [
        "False",
        "[True, False, True]",
        "True",
    ]


IMPORTS = """
import sys

class Prefect:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "prefect":
            raise Seen("jsonschema" in sys.modules, "rfc3987_syntax" in sys.modules)

class Seen(BaseException):
    pass

def worker():
    from determined_deployments.agent import prefect_side
    from determined_deployments.agent.launchers.fork_server.launcher import ForkServerLauncher
    prefect_side.import_worker(ForkServerLauncher)

def flow():
    from determined_deployments.agent.launchers.fork_server import plans
    for entry in plans.FLOW_MODULES:
        module, _, function = entry.partition(":")
        imported = __import__(module, fromlist=["*"])
        if function:
            getattr(imported, function)()

def service():
    from determined_service.prefect import gateway
    gateway.import_prefect()

def server():
    from determined_deployments import prefect_process
    prefect_process.import_server()

sys.meta_path.insert(0, Prefect())
for process in (worker, flow, service, server):
    for name in [name for name in sys.modules if name.partition(".")[0] == "jsonschema"]:
        del sys.modules[name]
    try:
        process()
    except Seen as seen:
        print(process.__name__, *seen.args)
"""


def test_jsonschema_is_imported_before_prefect() -> None:
    pytest.importorskip("rfc3987_syntax")
    seen = [f"{process} True False" for process in ("worker", "flow", "service", "server")]
    assert run(IMPORTS).splitlines() == seen
