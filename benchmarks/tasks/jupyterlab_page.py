"""From Enter on `det notebook start` to JupyterLab's page, and how much of that is JupyterLab's own start.

Needs the extra `notebook`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from urllib.parse import unquote

import httpx

from benchmarks.cluster import cluster
from determined.common import installation

ROUNDS = 5


def own_start() -> float:
    """Seconds until JupyterLab answers that is started without a cluster."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--ServerApp.port={port}", "--ServerApp.allow_root=True", "--no-browser"]
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={folder}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while True:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/api").raise_for_status()
                    return time.perf_counter() - begin
                except httpx.HTTPError:
                    time.sleep(0.02)
        finally:
            process.kill()
            process.wait()


def main() -> None:
    if importlib.util.find_spec("jupyterlab") is None:
        print(f"JupyterLab is not installed: {installation.command('notebook')}")
        return
    waits, own = [], []
    with cluster() as running:
        for number in range(ROUNDS + 1):
            enter = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "determined.cli", "notebook", "start", "--no-browser"],
                env=running.env,
                capture_output=True,
                text=True,
                check=True,
            )
            # As a browser: the address logs in, the page follows.
            found = re.fullmatch(r"http://([^.]+)\.localhost:(\d+)(\S+)", done.stdout.strip())
            assert found is not None, done.stdout
            host = {"Host": f"{found[1]}.localhost:{found[2]}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{found[2]}", headers=host) as browser:
                entered = browser.get(found[3])
                cookie = entered.headers["set-cookie"].partition(";")[0]
                where = unquote(found[3].partition("next=")[2])
                page = browser.get(where, headers={"Cookie": cookie})
            wait = time.perf_counter() - enter
            assert page.status_code in (200, 302), page.text
            subprocess.run(
                [*(sys.executable, "-m", "determined.cli", "notebook", "kill", "-f"), found[1]],
                env=running.env,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if number:  # the first one logs in
                waits.append(wait)
                own.append(own_start())
    print(
        f"Enter to JupyterLab's page: median {statistics.median(waits):.1f} s (min {min(waits):.1f}, max"
        f" {max(waits):.1f}); JupyterLab's own start {statistics.median(own):.1f} s"
        f" (load {os.getloadavg()[0]:.0f})"
    )


if __name__ == "__main__":
    main()
