"""The logs and numbers in docs/operate/monitoring.md match the code."""

from __future__ import annotations

import re

from determined.cli.doctor import judge
from determined.common.wire import disk
from determined_deployments.local import daemon
from determined_service.base.settings import Settings
from determined_service.loops import runtime
from determined_service.public import health_report
from determined_service.state.run_records import LOST_S
from tests.printed import ROOT

PAGE = (ROOT / "docs/operate/monitoring.md").read_text()
FOLDERS = {"service": "service", "agent": "deployments/determined_deployments/agent"}


def test_the_lines_to_look_for_are_written_by_the_part_that_is_named() -> None:
    rows = re.findall(r"^\| (service|agent) \| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert len(rows) > 8
    sources = {
        part: "\n".join(path.read_text() for path in (ROOT / folder).rglob("*.py"))
        for part, folder in FOLDERS.items()
    }
    assert [row for row in rows if row[1] not in sources[row[0]]] == []


def test_every_check_of_the_doctor_has_a_row() -> None:
    text = (ROOT / "harness/determined/cli/doctor/judge.py").read_text()
    named = set(re.findall(r"Diagnosis\(\s*f?\"([a-z ]+)", text))
    rows = " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))
    # Lines that are never more than OK have none.
    assert {name.strip() for name in named} - {"programs", "stuck"} == {
        name.strip() for name in named if f"`{name.strip()}" in rows
    }


def test_its_numbers_are_those_of_the_code() -> None:
    assert judge.OUTBOX_S == LOST_S == health_report.ASSIGNED_S == 60
    assert judge.CLOCK_S == 2 and judge.GONE_S == 24 * 3600
    assert (disk.LITTLE_BYTES, disk.TOO_LITTLE_BYTES) == (2 << 30, 200 << 20)
    assert Settings.model_fields["agent_timeout_s"].default == 30
    assert runtime.TRY_AGAIN_S == 5
    assert daemon.LOG_LIMIT == 16 << 20
