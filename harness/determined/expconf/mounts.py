"""Directories of the machine that trials see under other paths."""

from pydantic import Field

from determined.expconf.base import AbsolutePath, Section, Text
from determined.expconf.storage import Propagation


class BindMount(Section):
    """One item of ``bind_mounts``."""

    host_path: AbsolutePath = Field(description="directory on the machine")
    container_path: Text = Field(
        description="where the trial sees it; a relative path is under the working directory"
    )
    read_only: bool = Field(False, description="whether the trial may only read the directory")
    propagation: Propagation = Field("rprivate", description="mount propagation")
