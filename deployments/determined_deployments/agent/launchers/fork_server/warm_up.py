"""Work that libraries put off until they are first used, done before the fork."""

from __future__ import annotations


def http_client() -> None:
    """A first client makes httpx import its transport, 100 ms. Nothing is connected."""
    from determined.common.api import Session

    Session("http://127.0.0.1").close()


def torch_optimizer() -> None:
    """A first optimizer imports ``torch._dynamo``: a second of CPU that every trial would pay.

    No backward pass and nothing large: autograd and OpenMP would start threads.
    """
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    torch.optim.SGD([parameter], lr=0.1).step()
