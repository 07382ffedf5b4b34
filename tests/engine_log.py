"""A Docker engine's log of a container's output, also when the container is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory

_LENGTH_BYTES = 4


class EngineLog:
    """The file of a container's log (driver ``local``), opened while the container exists."""

    def __init__(self, file: Path) -> None:
        # An engine that removes the container unlinks the file, whose content stays until this is closed.
        self._file = file.open("rb")

    def close(self) -> None:
        self._file.close()

    def lines(self) -> list[str]:
        """The lines of its standard output, in the order of the engine's log."""
        self._file.seek(0)
        content = self._file.read()
        found, at = [], 0
        # Each entry lies between two copies of its length; of the last one a killed engine wrote less.
        while at + _LENGTH_BYTES <= len(content):
            start = at + _LENGTH_BYTES
            end = start + int.from_bytes(content[at:start], "big")
            if end > len(content):
                break
            entry = _ENTRY.FromString(content[start:end])
            if entry.source == "stdout":
                found.append(entry.line.decode())
            at = end + _LENGTH_BYTES
        return found


def _entry() -> Any:
    """The message type ``LogEntry`` of moby's ``api/types/plugins/logdriver/entry.proto``."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="entry.proto", syntax="proto3")
    message = file.message_type.add(name="LogEntry")
    fields = {
        "source": kinds.TYPE_STRING,
        "time_nano": kinds.TYPE_INT64,
        "line": kinds.TYPE_BYTES,
        "partial": kinds.TYPE_BOOL,
    }
    for number, (name, kind) in enumerate(fields.items(), start=1):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    return message_factory.GetMessages([file])["LogEntry"]


_ENTRY = _entry()
