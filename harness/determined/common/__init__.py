"""Code that the SDK, the CLI and the training process share.

Some modules here (``util``, ``constants``, ``yaml``, ``check``, ``experimental``, parts of ``api``) exist
because published scripts import them from Determined; docs/reference/sdk.md lists them.
"""

from __future__ import annotations

import logging
import sys

from determined._absent import absent

_ABSENT = {
    "streams": "client.list_experiments() and Trial.iter_metrics() read what the service has",
    "detignore": "client.create_experiment(config, model_dir) reads .detignore itself",
    "v1file_utils": "client.create_experiment(config, model_dir) packs the files itself",
    "detlomond": "the service has no WebSockets; `det` and the SDK use HTTP",
    "requests": "determined.common.api.Session has get, post, patch, put and delete",
    "types": "use the types of the values",
}


def set_logger(debug_enabled: bool) -> None:
    """Log to stdout in the format that a trial's logs have: INFO and above, or DEBUG and above."""
    from determined import LOG_FORMAT

    level = logging.DEBUG if debug_enabled else logging.INFO
    logging.basicConfig(stream=sys.stdout, level=level, format=LOG_FORMAT)
    # If a handler is there already, basicConfig leaves the level alone.
    logging.getLogger().setLevel(level)


__getattr__ = absent(__name__, _ABSENT)
