"""The gate before a task's port on another machine than the service's: how the proxy shows that it is it.

The task's server listens where only its own machine reaches it. The leg's supervisor listens on the network
(:mod:`determined_tasks.gates`), and passes on the connections of the service's proxy alone:

1. the gate sends :data:`HELLO` and :data:`NONCE_BYTES` random bytes;
2. the proxy sends the :func:`proof` for them;
3. the gate connects to the task's server and sends :data:`OPEN`; from there on it passes every byte on.

A gate that refuses ends the connection. The service makes the key of the agents' token, which neither tasks
nor supervisors have, and gives it to the supervisor with the order (:attr:`Port.gate_key
<determined.common.wire.legs.Port.gate_key>`). So nobody else can make it, and a proof that was overheard is
of no use for another connection. What comes after it is not encrypted.
"""

from __future__ import annotations

import hmac

HELLO = b"determined-gate-1\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
OPEN = b"\x01"


def key(agent_token: str, allocation_id: str, name: str) -> bytes:
    """Of the port ``name`` of an allocation."""
    what = f"determined-gate\0{allocation_id}\0{name}"
    return hmac.digest(agent_token.encode(), what.encode(), "sha256")


def proof(key: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, HELLO + nonce, "sha256")
