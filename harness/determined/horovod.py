"""``from determined.horovod import hvd``: Horovod for the framework that the script names.

    hvd.require_horovod_type("torch", "MyTrial is of PyTorch")
    hvd.init()

Raises ImportError if Horovod is not installed. Horovod is no longer developed, so most machines lack it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

if importlib.util.find_spec("horovod") is None:
    raise ImportError(
        "determined.horovod needs the package horovod, whose development has ended: start the script by "
        "determined.launch.torch_distributed instead, or install horovod",
        name="horovod",
    )

TYPES = ("torch", "tensorflow", "tensorflow.keras")


class _Horovod:
    """Stands for ``horovod.torch``, ``horovod.tensorflow`` or ``horovod.tensorflow.keras``, once a script
    names one.
    """

    def __init__(self) -> None:
        self._type: str | None = None
        self._reason = ""
        self._module: Any = None

    def require_horovod_type(self, horovod_type: str, reason: str) -> None:
        """Use ``horovod.<horovod_type>``, because of ``reason``.

        Raises ValueError for an unknown type, and when the process has required another type before.
        """
        if horovod_type not in TYPES:
            raise ValueError(
                f"horovod_type must be one of {', '.join(TYPES)}, found {horovod_type!r}"
            )
        if self._type not in (None, horovod_type):
            raise ValueError(
                f"horovod.{horovod_type} is required ({reason}), and horovod.{self._type} was before "
                f"({self._reason}): a process can use one of them"
            )
        self._type, self._reason = horovod_type, reason
        self._module = importlib.import_module(f"horovod.{horovod_type}")

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            raise RuntimeError(
                f"hvd.{name}: call hvd.require_horovod_type(), with one of {', '.join(TYPES)}, first"
            )
        return getattr(self._module, name)


hvd = _Horovod()
