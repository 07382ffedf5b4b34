"""Determined's generated client, one function per route."""

raise ImportError(
    "determined.common.api.bindings is not in this release: use determined.experimental.client, or a "
    "Session (determined.common.api) with the route itself, e.g. "
    "session.get('/api/v1/experiments/1').json(); the service shows its routes at /docs"
)
