"""TensorBoard files of a training with Keras."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import keras

from determined import core
from determined.common import installation
from determined.keras._summary import Summary

logger = logging.getLogger("determined.keras")


class TensorBoard(keras.callbacks.TensorBoard):
    """``keras.callbacks.TensorBoard`` that writes to the trial's TensorBoard directory.

    It takes ``core_context``, then the arguments of keras' callback. On the cluster ``log_dir`` is
    replaced. Without TensorFlow the files are written by torch, without the model's graph
    (``write_graph``). That needs the package tensorboard; without it ImportError is raised.
    """

    def __init__(self, core_context: core.Context, *args: Any, **kwargs: Any) -> None:
        if args:
            kwargs["log_dir"], args = args[0], args[1:]
        if core_context.info is not None or "log_dir" not in kwargs:
            given = kwargs.get("log_dir")
            kwargs["log_dir"] = str(core_context.train.get_tensorboard_path())
            if given is not None:
                logger.warning(
                    "log_dir %s is replaced by the trial's directory, %s", given, kwargs["log_dir"]
                )
        has_tensorflow = importlib.util.find_spec("tensorflow") is not None
        if not has_tensorflow:
            if importlib.util.find_spec("tensorboard") is None:
                raise ImportError(
                    f"TensorBoard files need its package: {installation.command('tensorboard')}",
                    name="tensorboard",
                )
            kwargs["write_graph"] = False
        super().__init__(kwargs.pop("log_dir"), *args, **kwargs)
        if not has_tensorflow:
            self._summary_module = Summary()
