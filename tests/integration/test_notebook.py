"""A notebook and a TensorBoard of a cluster, as people use them: through the proxy."""

from __future__ import annotations

import importlib.util
import json
import os
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets.sync.client

from determined.common import installation
from tests.integration.browser import open_browser
from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until

SCRIPT = """
import time
import determined as det
with det.core.init() as context:
    for step in range(1, 10_000):
        context.train.report_training_metrics(step, {"loss": 1 / step})
        time.sleep(0.1)
"""
SEARCH = """
name: grows
entrypoint: python3 script.py
searcher: {name: random, metric: loss, max_trials: 2, max_concurrent_trials: 1}
resources: {slots_per_trial: 1}
"""


def visitor(cluster: LocalCluster) -> httpx.Client:
    """Of the user `determined`, at the service's address."""
    session = cluster.session()
    return httpx.Client(
        base_url=session.master,
        headers={"Authorization": f"Bearer {session.token}"},
        timeout=TIMEOUT_S,
    )


def ready(cluster: LocalCluster, path: str) -> dict[str, Any]:
    """The task, once its page can be reached."""

    def look() -> dict[str, Any] | None:
        (task,) = (v for k, v in cluster.session().get(path).items() if k != "config")
        assert task["state"] not in ("STATE_TERMINATED", "STATE_TERMINATING"), task
        return dict(task) if task["state"] == "STATE_RUNNING" else None

    return until(f"{path} is ready", look)


def test_a_tensorboard_follows_a_running_search(cluster: LocalCluster, tmp_path: Path) -> None:
    experiment_id = cluster.submit(tmp_path, SEARCH, script_py=SCRIPT)
    task_id = cluster.det("tensorboard", "start", str(experiment_id), "-d").stdout.strip()
    try:
        task = ready(cluster, f"/api/v1/tensorboards/{task_id}")
        assert task["experimentIds"] == [experiment_id]
        with visitor(cluster) as client:
            (trial,) = until("a trial", lambda: cluster.trials(experiment_id) or None)
            run = f"experiment/{experiment_id}/trial/{trial['id']}"
            at = f"/proxy/{task_id}/data/plugin/scalars/scalars"

            def steps() -> int:
                answer = client.get(at, params={"run": run, "tag": "Determined/loss"})
                return answer.json()[-1][1] if answer.status_code == 200 and answer.json() else 0

            before = until("the trial's first points", lambda: steps() or None)
            until("more points", lambda: steps() > before or None)
            # A request for its page does not count as use: without a session the page does not load.
            assert httpx.get(str(client.base_url).rstrip("/") + at).status_code == 401
    finally:
        cluster.det("tensorboard", "kill", "-f", task_id)
        cluster.det("experiment", "kill", str(experiment_id))


def kept(cluster: LocalCluster, task_id: str, name: str, words: str) -> bool:
    """True if a file of the notebook with these words is in the cluster's storage."""
    found = list((cluster.data_dir / "checkpoints").glob(f"*/notebook/{task_id}"))
    if not found or not (found[0] / "index.json").exists():
        return False
    listed = name in json.loads((found[0] / "index.json").read_text())
    return listed and words in (found[0] / f"files/={name}").read_text()


needs_jupyter = pytest.mark.skipif(
    importlib.util.find_spec("jupyterlab") is None,
    reason=f"needs JupyterLab: {installation.command('notebook')}",
)


class Jupyter:
    """A notebook's server, through the proxy."""

    def __init__(self, cluster: LocalCluster, task_id: str) -> None:
        self.task_id = task_id
        found = ready(cluster, f"/api/v1/notebooks/{task_id}")
        self.token = found["serviceAddress"].partition("token=")[2]
        self.client = visitor(cluster)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        where = f"/proxy/{self.task_id}/api/{path}"
        answer = self.client.request(method, where, params={"token": self.token}, **more)
        return answer.raise_for_status()

    def run(self, code: str) -> list[str]:
        """The kinds of output of one cell in a new kernel."""
        kernel = self.ask("POST", "kernels", json={"name": "python3"}).json()["id"]
        where = str(self.client.base_url).replace("http", "ws", 1).rstrip("/")
        address = f"{where}/proxy/{self.task_id}/api/kernels/{kernel}/channels?token={self.token}"
        headers = {"Authorization": self.client.headers["Authorization"]}
        message = {
            "header": {
                "msg_id": uuid.uuid4().hex,
                "msg_type": "execute_request",
                "username": "",
                "session": uuid.uuid4().hex,
                "version": "5.3",
            },
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False},
            "channel": "shell",
        }
        found: list[str] = []
        with websockets.sync.client.connect(
            address, additional_headers=headers, origin=str(self.client.base_url).rstrip("/")
        ) as socket:
            socket.send(json.dumps(message))
            while True:
                given = json.loads(socket.recv(TIMEOUT_S))
                if given["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                    continue
                if given["msg_type"] == "error":
                    raise AssertionError(given["content"])
                found.extend(given["content"].get("data") or ())
                # It is the last message of a cell's output; the reply takes another channel.
                if given["content"].get("execution_state") == "idle":
                    return found


PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 4, 9]); plt.title('squares'); plt.show()"
FILES = """
open('left.txt', 'w').write('here')
import os
os.makedirs('.config', exist_ok=True)
open('.config/.hidden', 'w').write('too')
from IPython.display import Image, display
display(Image(data=b'\\x89PNG\\r\\n\\x1a\\n', format='png'))
"""
FOUND = """
assert open('.config/.hidden').read() == 'too'
from IPython.display import HTML
HTML('<b>')
"""


@needs_jupyter
def test_a_notebook_in_a_browser_and_its_files_in_the_next_one(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Opened already logged in, a cell that plots, the page and other files in the next notebook, the end
    without visitors. One test: each notebook takes its time to start."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    options = ["--no-browser", "--config", "resources.slots=0"]
    rest = ["notebook_idle_type=kernel_connections", "idle_timeout=60s"]
    started = cluster.det(
        *("notebook", "start", *options, "--config", rest[0], "--config", rest[1])
    )
    task_id = started.stderr.split()[1]

    def see(browser: Any, css: str, seconds: float = TIMEOUT_S) -> Any:
        return WebDriverWait(browser, seconds).until(
            lambda it: next(
                (one for one in it.find_elements(By.CSS_SELECTOR, css) if one.is_displayed()), None
            )
        )

    with open_browser(tmp_path / "profile") as browser:
        browser.get(started.stdout.strip())
        see(browser, ".jp-LauncherCard[data-category='Notebook']").click()
        see(browser, ".jp-Notebook .cm-content").click()
        browser.switch_to.active_element.send_keys(PLOT)
        # JupyterLab silently ignores a cell that runs before its page has a kernel: its websocket sends
        # nothing. Its indicator beside the kernel's name says "idle" before that.
        until("a kernel", lambda: "| Idle" in see(browser, "#jp-main-statusbar").text)
        browser.switch_to.active_element.send_keys(Keys.SHIFT, Keys.ENTER)
        picture = see(browser, ".jp-OutputArea-output img")
        assert picture.get_attribute("src").startswith("data:image/png")
        browser.save_screenshot(str(pictures / "notebook.png"))
        see(browser, ".jp-Toolbar [data-jp-item-name='save']").click()
        see(browser, ".jp-Dialog .jp-mod-accept").click()  # it asks for another name at first
        first = Jupyter(cluster, task_id)
        # The service's login is not enough, and neither is a login of somebody else.
        bare = first.client.get(f"/proxy/{task_id}/api/kernels")
        assert bare.status_code == 403
        assert "image/png" in first.run(FILES)
        until("it is kept", lambda: kept(cluster, task_id, "Untitled.ipynb", "image/png"))
        until("its files are kept", lambda: kept(cluster, task_id, "left.txt", "here"))

    # The first one rests from here on.
    again = cluster.det(
        *("notebook", "start", "--no-browser", "--config", "resources.slots=0"),
        *("--restore", task_id[:13]),
    )
    second = Jupyter(cluster, again.stderr.split()[1])
    try:
        assert second.ask("GET", "contents/left.txt").json()["content"] == "here"
        assert second.run(FOUND)
        with open_browser(tmp_path / "second") as browser:
            browser.get(again.stdout.strip().replace("lab%3F", "lab/tree/Untitled.ipynb%3F"))
            see(browser, ".jp-OutputArea-output img")
            browser.save_screenshot(str(pictures / "restored.png"))
    finally:
        cluster.det("notebook", "kill", "-f", second.task_id)

    def ended() -> str | None:
        shown = cluster.session().get(f"/api/v1/notebooks/{task_id}")["notebook"]
        return shown["exitStatus"] if shown["state"] == "STATE_TERMINATED" else None

    assert "nobody used it" in until("the idle notebook's end", ended)
    assert "this task was not used for" in cluster.det("notebook", "logs", task_id).stdout
