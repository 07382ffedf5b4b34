"""Config policies: what holds for all configurations of a workspace, or of the cluster."""

from __future__ import annotations

from typing import Any

from determined.common.api import Session
from determined.common.api.places import find_workspace

_PATH = "/api/v1/config-policies"


class ConfigPolicyVerbs:
    """Policies by ``workload`` (``EXPERIMENT`` or ``NTSC``: other tasks) and ``workspace``, a name; None: the
    global one. Each raises NotFoundException for a workspace that there is not."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, workload: str, workspace: str | None = None) -> dict[str, Any]:
        """The policy; {}: there is none."""
        return dict(self._session.get(self._path(workload, workspace)[0])["configPolicies"])

    def set(self, workload: str, text: str, workspace: str | None = None) -> dict[str, Any]:
        """Sets the policy, YAML or JSON text, in place of the one before; the policy. Raises
        BadRequestException, ForbiddenException."""
        path, workspace_id = self._path(workload, workspace)
        body = {"configPolicies": text, "workloadType": workload, "workspaceId": workspace_id}
        return dict(self._session.put(path, json=body)["configPolicies"])

    def delete(self, workload: str, workspace: str | None = None) -> None:
        """Takes the policy away. Raises ForbiddenException."""
        self._session.delete(self._path(workload, workspace)[0])

    def _path(self, workload: str, workspace: str | None) -> tuple[str, int | None]:
        if workspace is None:
            return f"{_PATH}/global/{workload}", None
        workspace_id: int = find_workspace(self._session, workspace)["id"]
        return f"{_PATH}/workspaces/{workspace_id}/{workload}", workspace_id
