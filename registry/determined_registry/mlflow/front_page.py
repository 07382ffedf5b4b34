"""MLflow's page as this cluster shows it: with what works here in front, and without what is closed.

MLflow's page begins as one for language models, with its assistant open, tells of usage data that it
collects, offers a demonstration, and its page of traces shows a film from MLflow's own host. None of this is
anything here, so the page gets a few lines that make "model training" its first view and leave the rest out.
A user's choices stay.
"""

from __future__ import annotations

import functools
from pathlib import Path

# The names are of its local storage: key and version, as its hook for settings writes them.
_ADDED = """
<script>
for (const [key, value] of [
  ["mlflow.workflowType_v1", "machine_learning"],
  ["mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", true],
  ["mlflow.settings.telemetry.enabled_v1", false],
  ["mlflow.telemetry.info.alert.dismissed_v1", true],
]) {
  try { if (localStorage.getItem(key) === null) localStorage.setItem(key, JSON.stringify(value)); } catch {}
}
// Nothing of another host is asked for (the service's answer forbids it, too, but that is an error).
const write = Element.prototype.setAttribute;
for (const kind of [HTMLMediaElement, HTMLSourceElement]) {
  kind.prototype.setAttribute = function (name, value) {
    if (name !== "src" || new URL(value, location.href).origin === location.origin) {
      write.call(this, name, value);
    }
  };
}
</script>
<style>
[data-assistant-ui="true"], [href="#/gateway"], a[href^="#/experiments/"][href$="/traces"],
section:has([data-component-id="mlflow.home.demo-banner.launch"]),
[href="#/settings/llm-connections"], [href="#/settings/webhooks"],
div:has(> div > [data-component-id="mlflow.settings.telemetry.toggle-switch"]),
div:has(> div > [data-component-id^="mlflow.settings.demo"]),
video { display: none !important; }
</style>
"""


@functools.cache
def page() -> bytes:
    """The HTML of MLflow's one page. Raises OSError where MLflow has no pages."""
    import mlflow.server

    folder = Path(mlflow.server.__file__).parent / mlflow.server.REL_STATIC_DIR
    text = (folder / "index.html").read_text(encoding="utf-8")
    return text.replace("</head>", f"{_ADDED}</head>", 1).encode()
