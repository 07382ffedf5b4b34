"""Parts of Determined's SDK for features that this service does not have yet."""

from __future__ import annotations

_WORKSPACES = "this service has one workspace, and projects are numbers"
_OAUTH = "this service has no SSO and no SCIM"
_POOLS = "see `det agent list` for the resource pools"

CLASSES = {
    **dict.fromkeys(("Project", "Workspace"), _WORKSPACES),
    "ResourcePool": _POOLS,
    "Oauth2ScimClient": _OAUTH,
}
CLIENT = {
    **CLASSES,
    **dict.fromkeys(
        ("create_workspace", "delete_workspace", "get_workspace", "list_workspaces"), _WORKSPACES
    ),
    **dict.fromkeys(("add_oauth_client", "list_oauth_clients", "remove_oauth_client"), _OAUTH),
}
