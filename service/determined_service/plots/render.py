"""The service's side of drawing: a short-lived process per page, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys

from determined_service.base.errors import NotFound, Unavailable
from determined_service.base.pages import PREFECT_HOME, of_service
from determined_service.base.settings import Settings
from determined_service.plots.page_order import NO_SUCH_EXPERIMENT, PageOrder

logger = logging.getLogger(__name__)

TIMEOUT_S = 300.0


class Renderer:
    """Draws pages for one service process.

    Pages are drawn one at a time: the holder of a link may ask for it any number of times, and each page
    takes a core for seconds.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()

    async def page(self, experiment_id: int) -> bytes:
        """The HTML. Raises NotFound; Unavailable when drawing fails or takes too long."""
        return await self._drawn(experiment_id)

    async def numbers(self, experiment_id: int) -> bytes:
        """JSON of :func:`determined_service.plots.numbers.numbers`. Raises as :meth:`page`."""
        return await self._drawn(experiment_id, numbers=True)

    async def _drawn(self, experiment_id: int, *, numbers: bool = False) -> bytes:
        has_prefect = self._settings.prefect_api_url is not None
        order = PageOrder(
            db_url=self._settings.db_url,
            experiment_id=experiment_id,
            prefect_url=f"{of_service(self._settings)}{PREFECT_HOME}" if has_prefect else None,
            numbers=numbers,
        )
        async with self._turn:
            code, page, said = await _draw(order)
        if code == NO_SUCH_EXPERIMENT:
            raise NotFound(f"experiment {experiment_id} does not exist")
        if code != 0:
            logger.error("the plot of experiment %d failed (%s):\n%s", experiment_id, code, said)
            last = said.strip().rpartition("\n")[2]
            raise Unavailable(
                f"the plot of experiment {experiment_id} could not be drawn: {last}; the "
                "service's log has the details"
            )
        return page


async def _draw(order: PageOrder) -> tuple[int | None, bytes, str]:
    """The process' exit code (None: it took too long), its output, and its standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "determined_service.plots",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Optuna's linear algebra is small: threads of it would only take cores from trainings.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            page, said = await process.communicate(order.model_dump_json().encode())
    except TimeoutError:
        return None, b"", f"drawing took longer than {TIMEOUT_S:.0f} s"
    finally:
        # Also if the client has hung up.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return process.returncode, page, said.decode(errors="replace")
