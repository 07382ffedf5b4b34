"""Answers that go on: what their reader sees is found out again, after each wait."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from determined_service.access.authenticator import Authenticator
from determined_service.access.principal import Principal
from determined_service.access.tokens import bearer_token
from determined_service.access.visible import seen_by
from determined_service.base import topics
from determined_service.base.db import SEEN, seeing


@dataclass(frozen=True, slots=True)
class LookAgain:
    """``topics``: are announced when it may have changed."""

    topics: tuple[str, ...]
    auth: Authenticator
    token: str

    async def look(self) -> Principal:
        """From here on the answer shows what its reader sees now; the reader, as it is now.

        Raises Unauthenticated when its session has ended, Conflict when its allocation has.
        """
        with seeing(None):
            subject = await self.auth.principal(self.token)
        SEEN.set(seen_by(subject))
        return subject


def look_again_for(request: Request, subject: Principal) -> LookAgain | None:
    """For a request whose rule narrows what it reads; None: the cluster has no roles, or none that could be
    taken from this subject."""
    auth: Authenticator = request.app.state.auth
    if not auth.has_roles or subject.is_platform:
        return None
    announced = (topics.user(subject.user_id), topics.ROLES, topics.CLUSTER)
    return LookAgain(announced, auth, bearer_token(request.headers))
