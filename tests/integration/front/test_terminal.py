"""A terminal in the page of a task, in a real browser on a real cluster."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from determined.common.api import Session, authentication
from determined.common.wire import shells
from determined.common.wire.shells import Frame
from determined_deployments.local import daemon
from determined_deployments.local.layout import Layout
from tests import axe
from tests.integration.browser import open_browser
from tests.integration.front.test_browser import complaints
from tests.integration.front.test_tour import Reader
from tests.local_cluster import LocalCluster
from tests.waiting import until

WAITS = """
import pathlib, time
print("begun", flush=True)
while not pathlib.Path("go").exists(): time.sleep(0.1)
"""
AHEAD = 256 << 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.running() as found:
        yield found


@pytest.fixture
def task(cluster: LocalCluster, tmp_path: Path) -> Iterator[str]:
    """A command that runs until the test ends."""
    (tmp_path / "train.py").write_text(WAITS)
    run, task_id = cluster.begin_here(tmp_path, "--slots", "0", "--", "python3", "train.py")
    yield task_id
    cluster.det("cmd", "kill", task_id)
    run.wait()


class Typist(Reader):
    """A person at a terminal in a browser."""

    def log_in(self, cluster: LocalCluster) -> str:
        """Logs in by a ticket; the address of the pages."""
        self.driver.get(cluster.det("open", "--no-browser").stdout.strip())
        return str(self.driver.current_url.partition("/det/")[0]) + "/det"

    def type(self, keys: str) -> None:
        self.driver.find_element("css selector", ".xterm-helper-textarea").send_keys(keys)

    def screen(self) -> str:
        """Every line of the terminal."""
        return str(
            self.driver.execute_script(
                "const b = term.buffer.active; return Array.from({length: b.length},"
                "(_, at) => b.getLine(at).translateToString(true)).join('\\n')"
            )
        )

    def sees(self, words: str) -> None:
        until(f"{words!r} in the terminal", lambda: words in self.screen(), show=self.screen)

    def said(self) -> str:
        return str(self.driver.find_element("id", "terminal-said").text)

    def hears(self, words: str) -> None:
        until(f"{words!r} below the heading", lambda: words in self.said(), show=self.said)


@pytest.fixture
def typist(cluster: LocalCluster, task: str, tmp_path: Path) -> Iterator[Typist]:
    """At a terminal beside the task."""
    with open_browser(tmp_path / "chromium", network=True) as driver:
        found = Typist(driver)
        base = found.log_in(cluster)
        driver.get(f"{base}/tasks/{task}")
        found.press("Terminal")
        found.hears("Connected.")
        yield found


def running(*words: str) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == list(words)]


def test_what_is_typed_and_printed(typist: Typist, task: str) -> None:
    typist.sees("python3 train.py")
    typist.type("echo $((6*7)) in ${DET_TASK_ID}\n")
    typist.sees(f"42 in {task}")

    def sides() -> list[int]:
        found: list[int] = typist.driver.execute_script("return [term.rows, term.cols]")
        return found

    before = sides()
    typist.type("stty size\n")
    typist.sees(f"\n{before[0]} {before[1]}\n")
    typist.driver.set_window_size(900, 700)
    until("the terminal has another size", lambda: sides() != before)
    rows, columns = sides()
    typist.type("stty size\n")
    typist.sees(f"\n{rows} {columns}\n")

    typist.type("printf 'gr\u00fc\u00df \u6f22 \\033[38;2;10;200;30mgreen\\033[0m\\n'\n")
    typist.sees("\ngr\u00fc\u00df \u6f22 green")
    assert "rgb(10, 200, 30)" in typist.driver.execute_script(
        "return Array.from(document.querySelectorAll('.xterm-rows span'),"
        " one => getComputedStyle(one).color)"
    )

    # Titles, links and the clipboard are the reader's.
    title = typist.driver.title
    typist.type(
        "printf '\\033]0;stolen\\007\\033]8;;http://evil.example\\033\\\\link\\033]8;;\\033\\\\"
        "\\033]52;c;ZXZpbA==\\007 harmless\\n'\n"
    )
    typist.sees("\nlink harmless")
    assert typist.driver.title == title
    assert not typist.driver.execute_script("return term._core._oscLinkService._dataByLinkId.size")

    typist.type("sleep 86123\n")
    until("it sleeps", lambda: running("sleep", "86123"))
    typist.type("\ue009c\ue000")  # Ctrl-C
    typist.type("echo ended by $?\n")
    typist.sees("ended by 130")
    # A long text at once, as it is pasted.
    typist.type("wc -c\n")
    until("it counts", lambda: running("wc", "-c"))
    typist.driver.execute_script("term.paste(('x'.repeat(59) + '\\n').repeat(1000))")
    typist.type("\ue009d\ue000")  # Ctrl-D
    typist.sees("\n60000\n")

    typist.type("exit 7\n")
    typist.hears("The program has ended with exit code 7.")
    typist.press("Open again")
    typist.hears("Connected.")
    assert complaints(typist.driver) == []
    assert axe.findings(typist.driver) == []


def test_a_page_that_shows_nothing_makes_the_program_wait(typist: Typist) -> None:
    # The page's script keeps what it has shown to itself.
    typist.driver.execute_script(
        "window.untold = []; window.got = 0;"
        "socket.addEventListener('message', (one) => { window.got += one.data.byteLength; });"
        "const send = socket.send.bind(socket);"
        "socket.send = (one) => typeof one === 'string' ? window.untold.push(one) : send(one);"
        "window.tell = () => { socket.send = send; window.untold.forEach((one) => send(one)); };"
    )
    typist.type("head -c 20000000 /dev/zero | tr '\\0' 'a'; echo; echo whole\n")
    got: list[int] = []

    def stands() -> bool:
        got.append(typist.driver.execute_script("return window.got"))
        return len(got) > 5 and got[-1] > AHEAD and len(set(got[-5:])) == 1

    until("no more comes", stands)
    assert got[-1] < 3 * AHEAD
    typist.driver.execute_script("window.tell()")
    typist.sees("\nwhole")
    assert typist.driver.execute_script("return window.got") > 20_000_000


def test_its_programs_end_with_the_page(typist: Typist) -> None:
    again = typist.driver.find_element("id", "terminal-again")
    assert not again.is_displayed()
    assert typist.driver.execute_script(
        "const view = document.querySelector('.xterm-viewport');"
        "return document.querySelector('.xterm-screen').getBoundingClientRect().right"
        " <= view.getBoundingClientRect().left + view.clientWidth"
    ), "the bar for scrolling covers a column"
    typist.type("sleep 86124\n")
    until("it sleeps", lambda: running("sleep", "86124"))
    typist.driver.get("about:blank")
    until("it has ended", lambda: not running("sleep", "86124"))


def test_it_ends_with_the_login_and_says_so(typist: Typist) -> None:
    typist.type("sleep 86125\n")
    until("it sleeps", lambda: running("sleep", "86125"))
    typist.driver.execute_script(
        "const fields = new FormData(document.querySelector('form[action$=logout]'));"
        "fetch('/det/logout', {method: 'POST', body: new URLSearchParams(fields)})"
    )
    typist.hears("Your login has ended")
    until("its program has ended", lambda: not running("sleep", "86125"))


def test_it_says_that_the_service_is_away(typist: Typist, cluster: LocalCluster) -> None:
    service = daemon.running(Layout.of(cluster.data_dir), "service")
    assert service is not None
    service.kill()
    typist.hears("The service does not answer.")
    cluster.up()
    typist.press("Open again")
    typist.hears("Connected.")
    typist.type("echo $((6*7))\n")
    typist.sees("\n42")


class Visit:
    """A login at the pages, without a browser."""

    def __init__(self, cluster: LocalCluster, username: str, password: str) -> None:
        self.port = httpx.URL(cluster.session().master).port
        self.host = f"det.localhost:{self.port}"
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Host": self.host, "Origin": f"http://{self.host}"},
        )
        form = {"username": username, "password": password, "to": ""}
        answer = self.client.post("/det/login", data=form)
        assert answer.status_code == 303, answer.text
        (self.cookie,) = (
            one.partition(";")[0]
            for one in answer.headers.get_list("set-cookie")
            if one.startswith("determined-front=")
        )

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path, headers={"Cookie": self.cookie})

    def way(self, task: str, csrf: str) -> httpx.Response:
        return self.client.post(
            f"/det/tasks/{task}/terminal", data={"csrf": csrf}, headers={"Cookie": self.cookie}
        )

    def csrf(self) -> str:
        page = self.get("/det/settings").text
        return page.partition('name="csrf" value="')[2].partition('"')[0]

    def refused(self, way: dict[str, Any], **changed: str) -> int:
        """The status of the answer to a websocket with these headers."""
        with pytest.raises(InvalidStatus) as refusal:
            self.connect(way, **changed)
        return refusal.value.response.status_code

    def connect(self, way: dict[str, Any], **changed: str) -> Any:
        given = {"Host": self.host, "Origin": f"http://{self.host}", "Cookie": self.cookie}
        given |= changed
        return connect(
            f"ws://{given.pop('Host')}{way['address']}",
            sock=socket.create_connection(("127.0.0.1", self.port)),
            origin=given.pop("Origin"),  # type: ignore[arg-type]
            subprotocols=[Subprotocol(one) for one in way["protocols"]],
            additional_headers=given,
            proxy=None,
        )


def test_who_gets_in(cluster: LocalCluster, task: str) -> None:
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    token = authentication.new_token(record["master_url"], "admin", record["passwords"]["admin"])
    with Session(record["master_url"], token) as admin:
        eve = {"user": {"username": "eve", "active": True}, "password": "long-enough"}
        admin.post("/api/v1/users", json=eve)
    owner = Visit(cluster, "determined", cluster.password())
    csrf = owner.csrf()
    assert csrf
    # Another site's page has no form of this session; nor has another user a right here.
    assert owner.way(task, "0" * 40).status_code == 403
    other = Visit(cluster, "eve", "long-enough")
    assert "Terminal" not in other.get(f"/det/tasks/{task}").text.partition("<main")[2]
    for answer in (other.get(f"/det/tasks/{task}/terminal"), other.way(task, other.csrf())):
        assert answer.status_code == 403 and "only its owner" in answer.text, answer.text

    way = owner.way(task, csrf).json()
    assert owner.refused(way, Origin="http://evil.example") == 403
    assert owner.refused(way, Origin=f"http://localhost:{owner.port}") == 403
    assert owner.refused(way, Cookie="") == 401
    assert owner.refused(way, Cookie=other.cookie) == 401
    assert owner.refused({**way, "protocols": way["protocols"][:1]}) == 400
    assert owner.refused({**way, "address": way["address"].replace("door-0", "door-1")}) == 401
    with owner.connect(way) as found:
        assert found.subprotocol == "determined-terminal"
        # Without the door's secret nothing is started.
        found.send(shells.frame(Frame.HELLO, json.dumps({"secret": "x", "tty": True}).encode()))
        assert b"not the door's secret" in found.recv()
    assert owner.refused(way) == 401, "a ticket is good once"
