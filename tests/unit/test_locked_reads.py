"""Code that changes a part of a stored value locks its row before it reads it (docs/inside/registry.md).

A statement that waits for a lock reads only the locked rows again: values from joined tables are older than
the lock. The checks read the sources, SQL texts and SQLAlchemy alike.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.unit.test_architecture import PACKAGES, ROOT, nodes_of

READERS = ["determined_service", "determined_registry"]

# Columns that a statement may read of a table that it does not lock, because nobody changes them while it
# waits. A column whose new value is made of the old one has no place here.
STEADY = {
    "allocations.trial_id",
    "experiments.owner_id",
    "experiments.unmanaged",
    # Only `continue` changes it, after the end.
    "experiments.config -> 'searcher'",
    "tasks.kind",
}

_LOCK = re.compile(
    r"\bFOR\s+(?:NO\s+KEY\s+UPDATE|UPDATE|SHARE|KEY\s+SHARE)\b(?:\s+OF\s+([\w,\s]+))?"
)
_TABLE = re.compile(r"\b(?:FROM|JOIN)\s+([a-z_]+)(?:\s+(?:AS\s+)?([a-z_]\w*))?")
_READ = re.compile(r"\b([a-z_]\w*)\.([a-z_]\w*(?: -> '\w+')?)")


def unlocked_reads_of_text(sql: str) -> Iterator[str]:
    """The columns, ``table.column``, that a locking SELECT answers with and does not lock."""
    for lock in _LOCK.finditer(sql):
        select = _level(sql, lock.start())
        tables = {alias or table: table for table, alias in _TABLE.findall(select)}
        outer = {alias or table for table, alias in _TABLE.findall(_without_parentheses(select))}
        locked = set(re.findall(r"\w+", lock[1])) if lock[1] else outer
        answers = select[: _without_parentheses(select).find("FROM")]
        for alias, column in _READ.findall(answers):
            if alias in tables.keys() - locked:
                yield f"{tables[alias]}.{column}"


def _level(sql: str, at: int) -> str:
    """The text before ``at`` within the same parentheses."""
    depth = 0
    for place in range(at - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(sql[place], 0)
        if depth < 0:
            return sql[place + 1 : at]
    return sql[:at]


def _without_parentheses(sql: str) -> str:
    """A text of the same length, with blanks inside parentheses."""
    depth, kept = 0, []
    for one in sql:
        depth -= one == ")"
        kept.append(one if not depth else " ")
        depth += one == "("
    return "".join(kept)


def unlocked_reads_of_select(call: ast.Call, tables: dict[str, str]) -> Iterator[str]:
    """The same of ``sa.select(…)….with_for_update(of=…)``; ``tables``: by the names of their columns."""
    of = next((one.value for one in call.keywords if one.arg == "of"), None)
    if of is None:
        return  # it locks all rows that it reads
    locked = {node.id for node in ast.walk(of) if isinstance(node, ast.Name)}
    chain: ast.AST = call
    while isinstance(chain, ast.Call) and isinstance(chain.func, ast.Attribute):
        if chain.func.attr == "select":
            for one in chain.args:
                yield from (
                    column for column, table in _columns(one, tables) if table not in locked
                )
        chain = chain.func.value


def _columns(node: ast.expr, tables: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Each column of an argument of ``select``, and its table."""
    if isinstance(node, ast.Name):
        yield f"{node.id}.*", node.id
    for one in ast.walk(node):
        if not isinstance(one, ast.Attribute):
            continue
        if isinstance(one.value, ast.Name) and one.value.id in tables:
            yield f"{tables[one.value.id]}.{one.attr}", tables[one.value.id]
        elif isinstance(one.value, ast.Attribute) and one.value.attr == "c":
            table = ast.unparse(one.value.value)
            yield f"{table}.{one.attr}", table


def short_names(tree: list[ast.AST]) -> dict[str, str]:
    """``x = mlflow_experiments.c`` of a module: x, and the table."""
    found: dict[str, str] = {}
    for node in tree:
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
            for target, value in pairs:
                table = ast.unparse(value).removesuffix(".c")
                if isinstance(target, ast.Name) and ast.unparse(value) == f"{table}.c":
                    found[target.id] = table
    return found


def text_of(node: ast.AST) -> str | None:
    """A string's text; each placeholder of an f-string becomes a word."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(one.value) if isinstance(one, ast.Constant) else " x " for one in node.values
        )
    return None


def unlocked_reads(tree: list[ast.AST]) -> list[str]:
    """Of a module."""
    found: list[str] = []
    tables = short_names(tree)
    within = {id(part) for node in tree if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in tree:
        text = None if id(node) in within else text_of(node)
        if text is not None:
            found += unlocked_reads_of_text(text)
        elif _is_call(node, "with_for_update"):
            found += unlocked_reads_of_select(node, tables)
    return [one for one in found if one not in STEADY and not one.endswith(".id")]


def _is_call(node: ast.AST, *methods: str) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
    )


def sources(packages: list[str]) -> Iterator[Path]:
    for package in packages:
        yield from sorted(PACKAGES[package].rglob("*.py"))


def test_rows_that_a_statement_may_change_are_locked() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: a statement that locks another table reads {column}: lock first, in a "
        "statement of its own, then read"
        for path in sources(READERS)
        for column in unlocked_reads(nodes_of(path))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            """_LOCK = sa.text('''SELECT t.id, e.unmanaged, coalesce(m.tags, '{}') AS tags FROM trials t
            JOIN experiments e ON e.id = t.experiment_id LEFT JOIN mlflow_runs m ON m.trial_id = t.id
            WHERE t.id = :id FOR NO KEY UPDATE OF t''')""",
            ["mlflow_runs.tags"],
        ),
        (
            """x = mlflow_experiments.c
sa.select(experiments.c.id, x.name, x.tags).outerjoin(mlflow_experiments, x.experiment_id == 1).where(
    experiments.c.id == 1).with_for_update(key_share=True, of=experiments)""",
            ["mlflow_experiments.name", "mlflow_experiments.tags"],
        ),
        (
            "sa.select(pipelines, users.c.active).join(users).with_for_update(of=pipelines)",
            ["users.active"],
        ),
        (
            """'''SELECT a.id, (SELECT f.state FROM allocations f WHERE f.id = a.other) FROM tasks k
            JOIN allocations a ON a.task_id = k.id FOR NO KEY UPDATE OF k, a'''""",
            ["allocations.state"],
        ),
        ("'SELECT k.id, a.state FROM tasks k JOIN allocations a ON true FOR UPDATE OF k, a'", []),
        ("'SELECT k.id, a.state FROM tasks k JOIN allocations a ON true FOR UPDATE'", []),
        ("'UPDATE a SET b = 1 WHERE id IN (SELECT id FROM a WHERE c ORDER BY id FOR UPDATE)'", []),
        ("sa.select(checkpoints.c.state).with_for_update()", []),
    ],
)
def test_unlocked_reads_are_seen(source: str, found: list[str]) -> None:
    assert unlocked_reads(list(ast.walk(ast.parse(source)))) == found


Function = ast.FunctionDef | ast.AsyncFunctionDef


def blind_updates(function: Function, tables: dict[str, str]) -> list[str]:
    """The tables in which the function reads a row without a lock, and then writes it.

    If the caller has locked the row, the function's docstring must say so.
    """
    nodes = list(ast.walk(function))
    if "locked" in (ast.get_docstring(function) or "") or any(_locks(node) for node in nodes):
        return []
    read: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            known = _selected(node.value, tables)
            for name in _names(node.value):
                known |= read.get(name, set())
            for target in targets:
                for name in _names(target):
                    read.setdefault(name, set()).update(known)
    found = []
    for node in nodes:
        if _is_call(node, "values", "on_conflict_do_update"):
            table = _written(node)
            given = [*node.args, *(one.value for one in node.keywords)]
            names = {name for one in given for name in _names(one)}
            if table and any(table in read.get(name, ()) for name in names):
                found.append(table)
    return found


def _locks(node: ast.AST) -> bool:
    """A lock, or a function that takes one."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        return "lock" in name or name in ("with_for_update", "find_to_change", "hold_name")
    return any(word in (text_of(node) or "") for word in ("FOR UPDATE", "FOR NO KEY UPDATE"))


def _selected(node: ast.AST, tables: dict[str, str]) -> set[str]:
    return {
        table
        for one in ast.walk(node)
        if isinstance(one, ast.Call) and ast.unparse(one.func) == "sa.select"
        for argument in one.args
        for _, table in _columns(argument, tables)
    }


def _written(call: ast.AST) -> str | None:
    """The table of ``sa.update(table)….values(…)`` or ``insert(table)….on_conflict_do_update(…)``."""
    wanted = ("sa.update",)
    if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("on_conflict_do_update"):
        wanted = ("insert",)
    chain = call
    while isinstance(chain, ast.Call):
        if ast.unparse(chain.func) in wanted and chain.args:
            return ast.unparse(chain.args[0])
        chain = chain.func.value if isinstance(chain.func, ast.Attribute) else ast.Pass()
    return None


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def test_rows_read_without_a_lock_are_not_written_back() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} reads rows of {table} without a lock and "
        "updates them by what it has read: lock them first, or let the statement that writes do it"
        for path in sources(READERS)
        for node in nodes_of(path)
        if isinstance(node, Function)
        for table in blind_updates(node, short_names(nodes_of(path)))
    ]
    assert wrong == []


def test_a_blind_update_is_seen() -> None:
    source = """async def relabel(conn, add):
    found = await conn.execute(sa.select(e.labels).where(e.id == 1))
    after = sorted({*found.scalar_one(), *add})
    await conn.execute(sa.update(experiments).where(e.id == 1).values({"labels": after}))"""
    tables = {"e": "experiments"}
    (blind,) = ast.parse(source).body
    locked = ast.parse(source.replace("e.id == 1))\n", "e.id == 1).with_for_update())\n", 1)).body[
        0
    ]
    other = ast.parse(source.replace("update(experiments)", "update(trials)")).body[0]
    assert isinstance(blind, Function) and isinstance(locked, Function)
    assert isinstance(other, Function)
    assert blind_updates(blind, tables) == ["experiments"]
    assert blind_updates(locked, tables) == blind_updates(other, tables) == []


# By its contract: the training code replaces its trial's metadata.
REPLACES = {"harness/determined/core/_train.py"}


def test_other_processes_send_changes_of_metadata() -> None:
    """And never the whole: what somebody else has added since it was read would be gone."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} replaces metadata as a whole: send a PATCH"
        for path in sources([one for one in PACKAGES if one != "determined_service"])
        if path.relative_to(ROOT).as_posix() not in REPLACES
        for node in nodes_of(path)
        if isinstance(node, Function) and replaces_metadata(node)
    ]
    assert wrong == []


def replaces_metadata(function: Function) -> bool:
    nodes = list(ast.walk(function))
    posts = any(
        (isinstance(node, ast.Attribute) and node.attr == "post")
        or (isinstance(node, ast.Constant) and node.value == "POST")
        for node in nodes
    )
    return posts and any((text_of(node) or "").endswith("/metadata") for node in nodes)
