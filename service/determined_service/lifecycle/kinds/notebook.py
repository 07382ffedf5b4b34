"""A notebook. What it starts (JupyterLab) is not here yet: none can be launched."""

from __future__ import annotations

from determined.expconf.tasks import NotebookConfig
from determined_service.lifecycle.kinds.launched import LaunchedKind
from determined_service.state import task_kinds


class Notebook(LaunchedKind):
    """``det notebook``."""

    name = task_kinds.NOTEBOOK
    noun = "notebook"
    title = "Notebook"
    config_class = NotebookConfig
    launches = False
