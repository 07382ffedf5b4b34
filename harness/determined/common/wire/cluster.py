"""What `det deploy local cluster-up` asks the service about a cluster configuration."""

from __future__ import annotations

from dataclasses import dataclass

from determined.common.wire.message import Message, checked


@checked
@dataclass(frozen=True, slots=True)
class ProposedConfig(Message):
    """``text``: the YAML of a cluster configuration that is not applied yet."""

    text: str
