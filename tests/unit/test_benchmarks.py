"""`python -m benchmarks`: one that fails does not keep the next from running."""

from __future__ import annotations

import sys
import types

import pytest

from benchmarks import __main__ as benchmarks


def test_the_next_ones_run_and_the_last_line_names_the_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def fails(name: str, error: BaseException | None) -> None:
        def main() -> None:
            ran.append(name)
            if error is not None:
                raise error

        module = types.ModuleType(f"benchmarks.{name}")
        module.main = main  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"benchmarks.{name}", module)

    fails("one", RuntimeError("the cluster is gone"))
    fails("two", None)
    fails("three", SystemExit("it did not happen in time"))
    fails("four", SystemExit(0))
    monkeypatch.setattr(benchmarks, "NAMES", ["one", "two", "three", "four"])
    with pytest.raises(SystemExit) as ended:
        benchmarks.main([])
    printed = capsys.readouterr().out
    assert (ended.value.code, ran) == (1, ["one", "two", "three", "four"])
    assert "the cluster is gone" in printed
    assert "it did not happen in time" in printed
    assert printed.splitlines()[-1] == "== 2 of 4 failed: one, three"
    benchmarks.main(["two", "four"])
    assert capsys.readouterr().out.splitlines()[-1] == "== all 2 done"
    with pytest.raises(SystemExit, match="no benchmark five; there are: one"):
        benchmarks.main(["five"])
