"""``async_halving``: one bracket of ASHA. The configuration says by which rule trials go on."""

from __future__ import annotations

from determined_searchers.asha import Halving
from determined_searchers.asha_promotion import PromotingHalving
from determined_searchers.asha_stopping import StoppingHalving
from determined_searchers.method import SearchContext
from determined_searchers.settings import Form


class AsyncHalving(Halving):
    """Has no instances: :meth:`from_config` makes one of the two rules."""

    @classmethod
    def from_config(cls, context: SearchContext) -> Halving:
        """One bracket of ``num_rungs``, by the configuration's rule."""
        return rule(context).from_config(context)


def rule(context: SearchContext) -> type[Halving]:
    """``max_length`` without ``stop_once`` promotes; everything else stops."""
    promotes = context.form is Form.OPERATIONS and not context.section.get("stop_once")
    return PromotingHalving if promotes else StoppingHalving
