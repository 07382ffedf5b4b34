"""The schema of configurations as Determined's client published it last (0.21) says what ours does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.expconf_verdicts import REFUSED, TAKEN
from tests.installed import install_into, kept
from tests.waiting import TIMEOUT_S

PACKAGE = "determined==0.21.0"
# Later releases of jsonschema lose the schema's own extensions in subschemas, and with them most rules.
NEEDED = ("jsonschema==4.0.1", "setuptools<80")
# The schemas alone: the packages around them would want the whole harness's dependencies.
_ASK = """
import importlib.util, json, pathlib, sys, types

site = pathlib.Path(importlib.util.find_spec("determined").submodule_search_locations[0]).parent
for name in ("", ".common", ".common.schemas", ".common.schemas.expconf"):
    name = "determined" + name
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [str(site.joinpath(*name.split(".")))]
from determined.common.schemas.expconf import _validate

print(json.dumps([_validate.sanity_validation_errors(one) for one in json.load(sys.stdin)]))
"""


def _python() -> Path:
    def install(home: Path) -> None:
        install_into(home, PACKAGE, ["--no-deps", PACKAGE], NEEDED)

    return kept("upstream-schema-0.21.0", install) / "bin" / "python"


def test_the_published_schema_says_the_same() -> None:
    pieces = TAKEN + REFUSED
    done = subprocess.run(
        [str(_python()), "-c", _ASK],
        input=json.dumps(pieces),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [piece for piece, errors in zip(pieces, said, strict=True) if not errors] == TAKEN
