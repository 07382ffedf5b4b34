"""How a leg's end is told: the service's last line in its log, and an exit code of the launch layer."""

from __future__ import annotations

EXITED = "resources exited successfully with a zero exit code"
FAILED = "resources failed with non-zero exit code"
FAILED_OTHERWISE = "task failed without an associated exit code"
LAST_WORDS = (EXITED, FAILED, FAILED_OTHERWISE)
"""The beginnings of the service's last line. Scripts for Determined wait for these words."""

NO_TRIAL_CLASS_CODE = 78
"""The exit code where the entrypoint's trial class is missing or incomplete (``EX_CONFIG`` of sysexits.h):
another try would end the same way."""
