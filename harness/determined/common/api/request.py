"""Determined's functions of early releases, which took an address with each call."""

raise ImportError(
    "determined.common.api.request is not in this release: session = determined.common.api.authentication"
    ".login_with_cache(address), then session.get(path), post, patch, put and delete"
)
