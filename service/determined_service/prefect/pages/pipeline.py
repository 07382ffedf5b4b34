"""The page of a pipeline's run: its steps, their experiments, the results, and the reason of its state."""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from determined_service.prefect.pages import markdown
from determined_service.views.pipelines import find_pipeline

MOST = 50
"""Experiments of one step that the page lists."""


async def pipeline_page(conn: AsyncConnection, pipeline_id: int) -> str | None:
    """The page as Markdown; None: the pipeline is gone. Everybody with Prefect's password sees it."""
    found = await find_pipeline(conn, pipeline_id, None)
    if found is None:
        return None
    parts = [
        f"## {markdown.text(found['name'])} (pipeline {pipeline_id})",
        f"**{found['state']}**"
        + (f": {markdown.text(found['reason'], 1000)}" if found["reason"] else "")
        + f"\n\nOwner: {markdown.text(found['username'])}",
        markdown.table(
            ["step", "state", "needs", "experiments", "took", "why"],
            [
                [
                    step["name"],
                    step["state"],
                    ", ".join(step["needs"]),
                    _counted(step["experiments"]),
                    _took(step),
                    step["reason"] or "",
                ]
                for step in found["steps"]
            ],
        ),
    ]
    for step in found["steps"]:
        if step["experiments"]:
            parts.append(_of_step(step))
    parts.append(
        f"On a terminal: `det pipeline describe {pipeline_id}`"
        + (
            f"; try again what failed: `det pipeline resume {pipeline_id}`"
            if found["state"] in ("FAILED", "CANCELED")
            else ""
        )
    )
    return "\n\n".join(parts)


def _counted(experiments: list[dict[str, Any]]) -> str:
    if len(experiments) <= 3:
        return ", ".join(str(one["id"]) for one in experiments if one["id"] is not None)
    done = sum(one["state"] == "COMPLETED" for one in experiments)
    return f"{done} of {len(experiments)} completed"


def _took(step: dict[str, Any]) -> str:
    if step["startTime"] is None or step["endTime"] is None:
        return ""
    took = datetime.datetime.fromisoformat(step["endTime"]) - datetime.datetime.fromisoformat(
        step["startTime"]
    )
    return str(datetime.timedelta(seconds=max(int(took.total_seconds()), 0)))


def _of_step(step: dict[str, Any]) -> str:
    header = ["experiment", "item", "try", "state", "best metric", "checkpoint", "why"]
    rows = []
    for one in step["experiments"][:MOST]:
        best = one["best"] or {}
        rows.append(
            [
                "" if one["id"] is None else f"{one['id']}{' (cached)' if one['cached'] else ''}",
                "" if one["item"] is None else markdown.cut(markdown.number(one["item"]), 100),
                one["attempt"],
                one["state"],
                "" if best.get("metric") is None else best["metric"],
                best.get("checkpoint") or "",
                one["reason"] or "",
            ]
        )
    more = len(step["experiments"]) - MOST
    words = f"\n\n… and {more} more" if more > 0 else ""
    return f"### {markdown.text(step['name'])}\n\n{markdown.table(header, rows)}{words}"
