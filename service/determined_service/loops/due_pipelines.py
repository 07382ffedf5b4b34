"""Runs pipelines again when their schedules say so, or an event has happened."""

from __future__ import annotations

import logging

from determined_service.base import topics
from determined_service.base.db import Database
from determined_service.base.errors import ApiError
from determined_service.loops.due import Due
from determined_service.pipelines import repeating
from determined_service.state.change import reader

logger = logging.getLogger(__name__)


class DuePipelines(Due):
    topic = topics.PIPELINES

    def __init__(self, db: Database) -> None:
        self._db = db

    async def run_pass(self) -> None:
        async with reader(self._db).connect() as conn:
            due = await repeating.due(conn)
            if self.may_look():
                due += [one for one in await repeating.stirred(conn) if one not in due]
        for pipeline_id in due:
            try:
                await repeating.begin_due(self._db, pipeline_id)
            except ApiError as error:  # it was deleted meanwhile
                logger.info("pipeline %s: %s", pipeline_id, error.message)
