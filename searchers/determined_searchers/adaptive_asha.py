"""``adaptive_asha``: brackets of ASHA that stop early more or less eagerly, as in Hyperband."""

from __future__ import annotations

from determined_searchers.asha import full_length
from determined_searchers.async_halving import rule
from determined_searchers.brackets import MODES, bracket_rungs, lay_out
from determined_searchers.errors import SearcherError
from determined_searchers.method import SearchContext, SearchMethod
from determined_searchers.settings import nearest, read_divisor, read_whole
from determined_searchers.tournament import Tournament


class AdaptiveASHA(Tournament):
    """A tournament over one ASHA per bracket; brackets share no results."""

    needs_metric = True

    @classmethod
    def from_config(cls, context: SearchContext) -> SearchMethod:
        section = context.section
        length = full_length(context)
        divisor = read_divisor(section)
        trials = read_whole(section, "max_trials", 1)
        cap = read_whole(section, "max_concurrent_trials", 0, default=16)
        rungs = section.get("bracket_rungs") or []
        if rungs:
            for place, count in enumerate(rungs):
                read_whole({f"bracket_rungs[{place}]": count}, f"bracket_rungs[{place}]", 1)
            rungs = sorted(rungs, reverse=True)
        else:
            most = read_whole(section, "max_rungs", 1, default=5)
            mode = section.get("mode") or "standard"
            if mode not in MODES:
                raise SearcherError(
                    f"searcher.mode: {mode!r} is not one of {', '.join(MODES)}"
                    f"{nearest(mode, MODES)}"
                )
            rungs = bracket_rungs(mode, most, length, trials, divisor)
        brackets = lay_out(rungs, trials, cap, divisor)
        halving = rule(context)
        return cls([halving(context, bracket, divisor) for bracket in brackets])
