"""Users' processes search their surroundings for Prefect's password, an administrator's right."""

from __future__ import annotations

import json
from pathlib import Path

from tests.local_cluster import LocalCluster

LOOK = """
import json, os, sys

password = sys.argv[1][::-1].encode()  # so that this program itself does not show it
pid, seen, found = os.getpid(), 0, []
while pid > 1:  # itself, its supervisor, the fork server, the agent, and who started that
    environ = open(f"/proc/{pid}/environ", "rb").read()
    if password in environ or b"API_AUTH_STRING" in environ or b"AGENT_TOKEN" in environ:
        found.append(open(f"/proc/{pid}/cmdline").read().replace(chr(0), " "))
    seen += 1
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
print("found " + json.dumps([seen, found]), flush=True)
"""
CONFIG = """
entrypoint: python3 look.py {backwards}
searcher: {{name: single, metric: x, max_length: 1}}
max_restarts: 0
"""


def test_no_process_of_a_task_and_none_above_it_has_prefects_password(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Gains: any command with the agent's account, from a trial whose account may read its supervisor's."""
    auth = json.loads((cluster.data_dir / "cluster.json").read_text())["prefect_auth"]
    backwards = auth[::-1]
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "look.py").write_text(LOOK)
    said = cluster.det("cmd", "run", "-c", str(folder), "python3", "look.py", backwards).stdout
    experiment = cluster.submit(tmp_path, CONFIG.format(backwards=backwards), look_py=LOOK)
    (line,) = cluster.wait_for_lines(experiment, "found [")
    for text in (said, line):
        seen, found = json.loads(text.partition("found ")[2].splitlines()[0])
        assert seen > 3 and found == []
