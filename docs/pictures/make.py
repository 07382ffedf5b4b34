"""Makes the pictures of the book from a running product: `make pictures`.

It starts a local cluster in a temporary directory, runs a search of `examples/digits` on it, and looks at its
pages with headless chromium (Debian's packages chromium and chromium-driver).
``python -m docs.pictures.make NAME…`` makes only those named, such as ``plots``.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import MONOKAI

from tests.integration.browser import open_browser
from tests.integration.mlflow.tour import Page as MlflowPage
from tests.integration.mlflow.tour import Tour
from tests.integration.test_prefect import Page as PrefectPage
from tests.local_cluster import DET, LocalCluster
from tests.printed import ROOT
from tests.waiting import until

HERE = Path(__file__).parent
DIGITS = "examples/digits"
COLOURS = 128
MOST_BYTES = 150_000
COLUMNS = 100
SEARCH = ["flow", "run", f"{DIGITS}/adaptive.yaml", DIGITS]
# A frame of the live view: what is between two times that it moves up to draw itself anew.
ANEW = re.compile(r"(?:\r?\x1b\[2K(?:\x1b\[1A)?)+")
CURSOR = re.compile(r"\x1b\[\?25[lh]")


@dataclass
class Stage:
    """A cluster on which experiment 1 is `adaptive.yaml`, and a browser."""

    cluster: LocalCluster
    browser: Any
    record: dict[str, Any]

    def det(self, *words: str) -> str:
        return self.cluster.det(*words, cwd=ROOT).stdout

    def keep(self, name: str, height: int | None = None) -> None:
        """The browser's window as ``name``.png; ``height``: no more than its upper pixels."""
        image = Image.open(io.BytesIO(self.browser.get_screenshot_as_png())).convert("RGB")
        if height is not None:
            image = image.crop((0, 0, image.width, height))
        target = HERE / f"{name}.png"
        image.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
        size = target.stat().st_size
        print(f"{target.relative_to(ROOT)}: {size} bytes")
        if size > MOST_BYTES:
            raise SystemExit(f"{target}: more than {MOST_BYTES} bytes")

    def shows(self, *texts: str) -> None:
        body = "return document.body ? document.body.innerText : ''"
        until(
            f"{texts} on the page",
            lambda: all(text in self.browser.execute_script(body) for text in texts),
            show=lambda: str(self.browser.execute_script(body)),
        )


def webdriver_actions(browser: Any) -> Any:
    from selenium.webdriver.common.action_chains import ActionChains

    return ActionChains(browser)


def watched(words: list[str], env: dict[str, str]) -> str:
    """What `det` writes to a terminal."""
    program, terminal = pty.openpty()
    with subprocess.Popen(
        [*DET, *words], cwd=ROOT, env=env, stdin=terminal, stdout=terminal, stderr=terminal
    ):
        os.close(terminal)
        written = b""
        while True:
            try:
                if not (some := os.read(program, 65536)):
                    break
            except OSError:  # the other end is closed
                break
            written += some
    os.close(program)
    return written.decode(errors="replace")


def live_view(stage: Stage) -> None:
    """In the middle of the search, below the command that began it."""
    env = {**stage.cluster.env, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    written = watched(SEARCH, env)
    frames = [frame for frame in ANEW.split(CURSOR.sub("", written)) if "Ctrl-C detaches" in frame]
    busy = [
        frame for frame in frames if "running" in frame and "completed" in frame and "best" in frame
    ]
    frame = busy[len(busy) * 2 // 3].replace("\r", "")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(f"$ det {' '.join(SEARCH)}", style="bold", highlight=False)
    for line in AnsiDecoder().decode(frame.rstrip()):
        console.print(line, no_wrap=True, overflow="crop")
    svg = console.export_svg(title="det flow run", theme=MONOKAI)
    # Its fonts would come from another host.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    (HERE / "live-view.svg").write_text(svg)


def prefect_search(stage: Stage) -> None:
    """Not the experiment's run itself: its page begins with a graph, which needs WebGL."""
    page = PrefectPage(stage.browser, stage.cluster)
    page.browser.get(f"{page.url}/runs")
    page.shows("Runs", "trial 32", "Completed")
    stage.keep("prefect-search")


def prefect_queue(stage: Stage) -> None:
    """Two trials run, others wait and say why."""
    wide = ["--config", "resources.slots_per_trial=2"]
    for more in ([], wide, wide):
        stage.det("experiment", "create", f"{DIGITS}/grid.yaml", DIGITS, *more)
    page = PrefectPage(stage.browser, stage.cluster)
    page.browser.get(f"{page.url}/work-pools/work-pool/default")
    page.shows("AwaitingSlots: ", "Running")
    stage.keep("prefect-queue")
    stage.det("experiment", "kill", "--all", "--yes")


def mlflow_runs(stage: Stage) -> None:
    tour = Tour(stage.browser, stage.record["master_url"], "determined", stage.cluster.password())
    best = "orderByKey=metrics.%60validation%2Faccuracy%60&orderByAsc=false"
    path = f"/experiments/1/runs?{best}&compareRunsMode=CHART"
    tour.visit(MlflowPage("runs", path, ("trial-1", "accuracy")))
    stage.keep("mlflow-runs")


def front_home(stage: Stage) -> None:
    """Two trials run, and others wait."""
    wide = ["--config", "resources.slots_per_trial=2"]
    for more in ([], wide):
        stage.det("experiment", "create", f"{DIGITS}/grid.yaml", DIGITS, *more)
    stage.browser.get(stage.det("open", "--no-browser").strip())
    stage.shows("What runs", "digits-grid", "in use", "running")
    stage.keep("front-home")
    stage.det("experiment", "kill", "--all", "--yes")


def front_experiment(stage: Stage) -> None:
    stage.browser.get(stage.det("open", "1", "--no-browser").strip())
    stage.shows("Learning curves", "Best trials")
    until("the curves", lambda: stage.browser.find_elements("css selector", ".u-over"))
    stage.keep("front-experiment")


def plots(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "search.html"
        stage.det("experiment", "plot", "1", "-o", str(file))
        stage.browser.get(file.as_uri())
        stage.shows("Learning curves")
        stage.keep("plots")


def notebook(stage: Stage) -> None:
    """The example, whose cells have been run."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def see(css: str) -> Any:
        return until(
            css, lambda: next(iter(stage.browser.find_elements(By.CSS_SELECTOR, css)), None)
        )

    with tempfile.TemporaryDirectory() as folder:
        cells = (ROOT / "examples/notebook/curves.ipynb").read_text()
        for old, new in (
            ("validation_loss", "accuracy"),
            # Of 32 trials: as large as the plot.
            ("plt.legend()", "plt.gcf().set_size_inches(9, 2.6)"),
        ):
            cells = cells.replace(old, new)
        (Path(folder) / "curves.ipynb").write_text(cells)
        options = ["--no-browser", "--config", "resources.slots=0", "-c", folder]
        address = stage.det("notebook", "start", *options).strip()
    stage.browser.get(f"{address}")
    stage.shows("curves.ipynb")
    item = see("[title^='Name: curves.ipynb']")
    webdriver_actions(stage.browser).double_click(item).perform()
    see(".jp-Notebook .cm-content")
    until("a kernel", lambda: "| Idle" in see("#jp-main-statusbar").text)
    menu = next(
        one
        for one in stage.browser.find_elements(By.CSS_SELECTOR, ".lm-MenuBar-item")
        if one.text == "Run"
    )
    menu.click()
    until("the menu", lambda: "Run All Cells" in stage.browser.page_source)
    next(
        one
        for one in stage.browser.find_elements(By.CSS_SELECTOR, ".lm-Menu-item")
        if one.text.startswith("Run All Cells")
    ).click()
    see(".jp-OutputArea-output img")
    stage.browser.switch_to.active_element.send_keys(Keys.CONTROL, "b")  # without the list of files
    stage.keep("notebook")


PICTURES: dict[str, Callable[[Stage], None]] = {
    "live-view": live_view,
    "prefect-search": prefect_search,
    "prefect-queue": prefect_queue,
    "mlflow-runs": mlflow_runs,
    "front-home": front_home,
    "front-experiment": front_experiment,
    "plots": plots,
    "notebook": notebook,
}
"""``live-view`` is always made: its search is what all others show."""


def main(names: list[str]) -> None:
    if unknown := set(names) - set(PICTURES):
        raise SystemExit(f"no picture {', '.join(sorted(unknown))}; choose {', '.join(PICTURES)}")
    with LocalCluster.running(torch=True) as cluster:
        record = json.loads((cluster.data_dir / "cluster.json").read_text())
        for name, make in PICTURES.items():
            if name != "live-view" and names and name not in names:
                continue
            # A new browser for each: requests that the page before has begun would count.
            with (
                tempfile.TemporaryDirectory() as profile,
                open_browser(Path(profile), network=True) as browser,
            ):
                make(Stage(cluster, browser, record))


if __name__ == "__main__":
    main(sys.argv[1:])
