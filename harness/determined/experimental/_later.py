"""Parts of Determined's SDK for features that this service does not have yet."""

from __future__ import annotations

_OAUTH = "this service has no SSO and no SCIM"

CLASSES = {"Oauth2ScimClient": _OAUTH}
CLIENT = {
    **CLASSES,
    **dict.fromkeys(("add_oauth_client", "list_oauth_clients", "remove_oauth_client"), _OAUTH),
}
