"""What an experiment came from, what came from it, and the slots that it used."""

from __future__ import annotations

from typing import Any

from determined_service.access.dependencies import ExperimentReader
from determined_service.base.bounds import Id
from determined_service.views.experiments import require_experiment
from determined_service.views.lineage import lineage
from determined_service.web.router import Router
from determined_service.web.state import Db

router = Router("Experiments", "/api/v1/experiments/{experiment_id}")


@router.get("/lineage")
async def read_lineage(experiment_id: Id, user: ExperimentReader, db: Db) -> dict[str, Any]:
    """The experiment's parent, its forks, the versions of models registered from its checkpoints, the
    pipelines and retrainings that it is part of (as far as the sender sees them; of each the newest 100), and
    `slotSeconds`, the seconds of slots that its trials have used."""
    async with db.tx() as conn:
        await require_experiment(conn, experiment_id)
        return await lineage(conn, experiment_id)
