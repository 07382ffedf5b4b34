"""``python -m determined_service.plots``: a :class:`PageOrder` as JSON on stdin, what it orders on stdout.

Exit code 4: the experiment does not exist.
"""

from __future__ import annotations

import sys

from determined_service.base.json import dumps
from determined_service.plots.page_order import NO_SUCH_EXPERIMENT, PageOrder


def main() -> int:
    order = PageOrder.model_validate_json(sys.stdin.buffer.read())
    from determined_service.plots.queries import NoSuchExperiment, read_search

    try:
        curves = not order.numbers
        search = read_search(order.db_url, order.experiment_id, order.prefect_url, curves=curves)
    except NoSuchExperiment as error:
        print(error, file=sys.stderr)
        return NO_SUCH_EXPERIMENT
    # Optuna would load it for another evaluator, and it SciPy: half of the time of a page.
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    if order.numbers:
        from determined_service.plots.numbers import numbers

        sys.stdout.buffer.write(dumps(numbers(search)))
        return 0
    from determined_service.plots.page import render_page

    sys.stdout.buffer.write(render_page(search).encode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
