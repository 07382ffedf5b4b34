"""The launcher whose jobs are forks of zygotes on the agent's machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from determined_deployments.agent import programs
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers.base import Call, Exit, Job, Running
from determined_deployments.agent.launchers.fork_server import plans
from determined_deployments.agent.launchers.fork_server.forking import Forked, ForkingLauncher
from determined_deployments.agent.launchers.fork_server.learning import TRIAL, Learning
from determined_deployments.agent.launchers.fork_server.server import ZygotePlan
from determined_deployments.agent.launchers.fork_server.zygote import ROOT


class ForkServerLauncher(ForkingLauncher):
    """Legs are processes of this machine; their zygotes have imported what their code imports."""

    worker_type = "determined-process"
    worker = "determined_deployments.agent.launchers.fork_server.worker:DeterminedProcessWorker"

    def __init__(self, config: AgentConfig, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        super().__init__(config, fetch)
        imported = [*plans.TRIAL_MODULES, *plans.trial_optional()]
        self._learning = Learning(self.forks, config.work_dir, fetch, imported)

    def lacks(self) -> dict[str, str]:
        return programs.lacking()

    def missing_programs(self) -> dict[str, str]:
        return programs.missing()

    @classmethod
    def leg_zygote(cls) -> ZygotePlan:
        return ZygotePlan(TRIAL, ROOT, plans.TRIAL_MODULES, plans.trial_optional())

    async def ready(self) -> None:
        await self.forks.wait_ready([ROOT])

    async def start_leg(self, job: Job, program: Call) -> Forked:
        spec = job.leg
        if spec is None:
            return await self.forked(job, [TRIAL, ROOT], program)
        if not self.config.may_share(spec):
            # Its supervisor starts a new interpreter. What the code imports stays unknown: a zygote
            # is root's, and would import with the user's variables.
            return await self.forked(job, [ROOT], program)
        names, learn_into = self._learning.before_leg(spec)
        try:
            await self._learning.settle(spec)
            running = await self.forked(job, names, program, learn_into=learn_into)
        except BaseException:
            self._learning.after_leg(spec)
            raise
        running.spec = spec
        return running

    async def wait(self, running: Running) -> Exit:
        assert isinstance(running, Forked)
        ended = await super().wait(running)
        if running.spec is not None:
            self._learning.after_leg(running.spec)
        return ended
