"""The beginning of the service's last line in a leg's log. Scripts for Determined wait for these words."""

from __future__ import annotations

EXITED = "resources exited successfully with a zero exit code"
FAILED = "resources failed with non-zero exit code"
FAILED_OTHERWISE = "task failed without an associated exit code"
LAST_WORDS = (EXITED, FAILED, FAILED_OTHERWISE)
