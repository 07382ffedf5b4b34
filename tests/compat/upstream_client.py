"""Determined's published client, in a separate virtual environment, driven from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fork_server import fork_server
from tests.installed import install_into, kept
from tests.waiting import TIMEOUT_S

VERSION = "0.38.1"
RECORD = "DET_TESTS_RECORD"
"""With this variable every command of the client's is written into the file that it names, for
:mod:`tests.compat.commands_table`."""
MODULES = (
    *("OpenSSL.crypto", "argcomplete", "tabulate", "determined.experimental.client"),
    *(
        "determined.cli.dev",
        "determined.cli.experiment",
        "determined.cli.job",
        "determined.cli.model",
    ),
    *("determined.cli.resources", "determined.cli.template", "determined.cli.user_groups"),
)
"""What its commands and its SDK import. Not ``determined.cli.cli``: it remembers the arguments of then."""


def installed_python(version: str = VERSION) -> Path:
    """The interpreter that has that release of the client; installed on first use and kept.

    Skips the test that asks when pip cannot get it.
    """

    requirement = f"determined=={version}"
    # Its releases need the same packages, which are 400 MB.
    shared = None if version == VERSION else installed_python()

    def install(home: Path) -> None:
        if shared is None:
            install_into(home, requirement, [requirement])
            return
        python = install_into(home, requirement, ["--no-deps", requirement])
        own, others = site_packages(python), site_packages(shared)
        (own / "others.pth").write_text(f"{others}\n")

    return kept(f"upstream-{version}", install) / "bin" / "python"


def site_packages(python: Path) -> Path:
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


@dataclass(frozen=True)
class UpstreamClient:
    """The client's `det` and SDK, pointed at one cluster; ``home`` keeps its login."""

    python: Path
    home: Path
    master: str
    passwords: dict[str, str]

    @property
    def env(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DET_", "PYTHON", "VIRTUAL_ENV"))
        }
        return {
            **inherited,
            "HOME": str(self.home),
            "DET_DEBUG_CONFIG_PATH": str(self.home / "determined"),
            "DET_MASTER": self.master,
        }

    def det(
        self,
        *args: str,
        code: int = 0,
        input: str | None = None,
        timeout: float = 60,
        more: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs the published `det` with ``more`` variables; asserts that it ends with ``code``.

        Without a terminal: it asks for passwords on stdin then.
        """
        done = self._run(["-m", "determined.cli", *args], input, timeout, more)
        if record := os.environ.get(RECORD):
            with Path(record).open("a") as lines:
                lines.write(json.dumps({"args": args, "code": done.returncode}) + "\n")
        assert done.returncode == code, (
            f"det {' '.join(args)} ended with {done.returncode}\n"
            f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        )
        return done

    def sdk(self, script: str, *args: object, timeout: float = 90) -> Any:
        """Runs ``script`` with a logged-in `client`, the arguments in `args` and a `show(value)`
        that must be called once, with what this returns (JSON)."""
        source = _SDK_PREAMBLE + script
        given = json.dumps([str(one) for one in args])
        done = self._run(["-c", source, self.passwords["determined"], given], None, timeout)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    def _run(
        self,
        args: list[str],
        input: str | None,
        timeout: float,
        more: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        settings = (("DET_MASTER", self.master),)
        server = fork_server(str(self.python), MODULES, settings)
        return server.run(args, {**self.env, **(more or {})}, input=input or "", timeout=timeout)

    def login(self, username: str, password: str, code: int = 0) -> str:
        """`det user login`; what it says on stderr."""
        args = ("-m", self.master, "user", "login", username)
        return self.det(*args, input=password + "\n", code=code).stderr

    def create(self, config: Path, *args: str) -> int:
        """`det experiment create`; the experiment's id."""
        said = self.det("experiment", "create", str(config), *args).stdout
        found = re.search(r"Created experiment (\d+)", said)
        assert found is not None, said
        return int(found[1])

    def wait(self, experiment_id: int, code: int = 0) -> None:
        """`det experiment wait`: 0 when it has completed."""
        args = ("experiment", "wait", str(experiment_id), "--polling-interval", "1")
        self.det(*args, code=code, timeout=TIMEOUT_S)

    def json(self, *args: str) -> Any:
        """The parsed output of a command with --json."""
        return json.loads(self.det(*args, "--json").stdout)


_SDK_PREAMBLE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from determined.experimental import client

client.login(os.environ["DET_MASTER"], "determined", sys.argv[1])
args = json.loads(sys.argv[2])

def show(value):
    print("\\n" + json.dumps(value))
"""
