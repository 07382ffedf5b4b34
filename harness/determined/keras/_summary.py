"""A substitute for ``tf.summary`` in keras' TensorBoard callback: it writes with torch's writer, without
TensorFlow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class Summary:
    """Scalars, histograms and images go to the current writer, if any, while recording is on."""

    def __init__(self) -> None:
        self._writers: list[FileWriter] = []
        self._conditions: list[Callable[[], bool]] = []

    def create_file_writer(self, path: str) -> FileWriter:
        return FileWriter(self, path)

    @contextlib.contextmanager
    def record_if(self, condition: Callable[[], bool]) -> Iterator[None]:
        self._conditions.append(condition)
        try:
            yield
        finally:
            self._conditions.pop()

    def scalar(self, name: str, value: Any, step: Any) -> None:
        if (writer := self._writer()) is not None:
            writer.add_scalar(name, float(_array(value)), int(_array(step)))

    def histogram(self, name: str, data: Any, step: Any) -> None:
        if (writer := self._writer()) is not None:
            writer.add_histogram(name, _array(data), int(_array(step)))

    def image(self, name: str, data: Any, step: Any) -> None:
        """``data``: images, height, width, channels."""
        if (writer := self._writer()) is not None:
            writer.add_images(name, _array(data), int(_array(step)), dataformats="NHWC")

    def _writer(self) -> Any:
        wanted = self._writers and all(condition() for condition in self._conditions)
        return self._writers[-1]._writer if wanted else None


class FileWriter:
    """Event files in one directory."""

    def __init__(self, summary: Summary, path: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._summary = summary
        self._writer = SummaryWriter(path)

    @contextlib.contextmanager
    def as_default(self, step: int | None = None) -> Iterator[None]:
        self._summary._writers.append(self)
        try:
            yield
        finally:
            self._summary._writers.pop()

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _array(value: Any) -> np.ndarray:
    import keras

    return np.asarray(keras.ops.convert_to_numpy(value))
