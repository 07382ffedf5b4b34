"""``python3 -m determined.exec._jupyterlab [OPTION]...``: JupyterLab, started in half of the time.

The library of JSON schemas imports ``rfc3987_syntax``, if it is there, which compiles the grammar of
addresses while it is imported: 1.5 s of a core in each start. It checks the format of addresses in schemas of
JupyterLab's own, which has nothing to find; kernels are separate processes and have it.
"""

from __future__ import annotations

import gc
import importlib
import sys


def main() -> None:
    """Serves until it is ended."""
    # The library takes that for a package that is not installed.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    # What imports make stays; to look through it again and again is a tenth of their time.
    gc.disable()
    labapp = importlib.import_module("jupyterlab.labapp")
    gc.freeze()
    gc.enable()
    labapp.main()


if __name__ == "__main__":
    main()
