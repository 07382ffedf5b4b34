"""Pairs of keys for ssh."""

from __future__ import annotations

from typing import NamedTuple

ED25519 = "ED25519"


class SshKey(NamedTuple):
    """``private``: in OpenSSH's format; ``public``: one line, as in `authorized_keys`."""

    type: str
    private: str
    public: str


def new_key(comment: str) -> SshKey:
    """A new pair. It takes a fraction of a millisecond."""
    # Few processes need it, and it takes a while to import.
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return SshKey(ED25519, private.decode(), f"{public.decode()} {comment}")
