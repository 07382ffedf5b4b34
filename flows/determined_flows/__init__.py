"""Flows: what happens in which order. The platform's own, and blocks for those of users."""

from determined.common.wire import no_telemetry

no_telemetry.forbid()
