"""Pipelines of experiments: read, checked, resolved. No service, no clock."""

from __future__ import annotations

from typing import Any

import pytest

from determined.common import pipeline
from determined.common.pipeline import Result, references, resolving
from determined.common.wire import limits
from determined.expconf import ConfigError, Document, load_yaml
from determined.experimental import pipeline as sdk

CONFIG = """
entrypoint: python3 ${HOME}/train.py
hyperparameters:
  lr: {type: log, base: 10, minval: -4, maxval: -1}
  net: {width: 3}
searcher: {name: single, metric: loss, max_length: {batches: 1}}
"""


def load(path: str) -> Document:
    text = CONFIG if path == "good.yaml" else CONFIG.replace("single", "singl")
    return load_yaml(text, path)


def mistakes(text: str, **params: Any) -> list[str]:
    try:
        pipeline.check(pipeline.read(load_yaml(text, "p.yaml"), load, params))
    except ConfigError as error:
        return str(error).splitlines()
    return []


HEAD = (
    "name: p\nsteps:\n- {name: a, experiment: good.yaml}\n"
    "- {name: b, for_each: [1, 2], experiment: good.yaml}\n"
)
EVALUATE = "- {name: c, evaluate: {function: 'e:e', checkpoint: '${steps.a.best.checkpoint}', "
COMPARES = EVALUATE + "against: {model: m}, rule: {metric: a}}}\n"
PROMOTE = "- {name: d, promote: {comparison: c, "
C = HEAD + "- name: c\n  experiment: good.yaml\n  "


def of_c(reference: str) -> str:
    return f"{C}with: {{hyperparameters.x: '${{{reference}}}'}}"


WRONG = [
    ("name: p", "p.yaml: steps: expected a list of steps, found null"),
    (HEAD + "stps: []", "p.yaml:5: stps: unknown field; did you mean 'steps'?"),
    (
        HEAD + "- {name: a, experiment: good.yaml}",
        "'a' is the name of two steps (the first: line 3)",
    ),
    (HEAD + "- {name: 1a, experiment: good.yaml}", "steps[2].name: expected a name of letters"),
    (HEAD + "- {name: c, experiment: 3}", "or the path of one, found 3"),
    (HEAD + "- {name: c, experiment: bad.yaml}", "bad.yaml:6: searcher.name: found 'singl'"),
    (C + "neds: [a]", "p.yaml:7: steps[2].neds: unknown field; did you mean 'needs'?"),
    (C + "needs: [A]", "steps[2].needs[0]: it needs 'A', which is not a step; did you mean 'a'?"),
    (C + "needs: [c]", "it needs itself"),
    (C + "cached: 1", "steps[2].cached: expected true or false, found 1"),
    (C + "max_concurrent: 0", "steps[2].max_concurrent: expected a whole number from 1, found 0"),
    (C + "max_concurrent: 2", "steps[2].max_concurrent: this step has no for_each"),
    (C + "when: 3", "steps[2].when: expected a condition, which is a text, found 3"),
    (C + "when: 1 +", "steps[2].when: when: '1 +' cannot be read: expected a condition such as"),
    (C + "when: 1 + 1 == 2", "cannot be read: expected a condition such as"),
    (C + "when: f(1)", "cannot be read: expected a condition such as"),
    (C + "when: x == 1", "unknown word 'x': write texts in quotes"),
    (C + "when: '${item} > 1'", "${item}: a condition is about the whole step"),
    (C + 'when: \'"${steps.a.best.trial}" == "1"\'', "write references without quotes"),
    (C + "when: '${steps.q.best.trial} > 1'", "there is no other step 'q'"),
    (C + "when: '${steps.a.best.hparams.lrr} > 1'", "no hyperparameter 'lrr'; did you mean 'lr'?"),
    (HEAD + "- {name: c, approval: }", "steps[2].approval: expected a question, which is a text"),
    (HEAD + "- {name: c, approval: x, with: {}}", "steps[2].with: unknown field"),
    (HEAD + "- {name: c, approval: x, experiment: good.yaml}", "a step is one of experiment, "),
    (
        HEAD + "- {name: c, promote: m}",
        "steps[2].promote: expected a mapping such as {model: digits",
    ),
    (HEAD + "- {name: c, promote: {modl: m, checkpoint: x, model: m}}", "did you mean 'model'?"),
    (HEAD + "- {name: c, promote: {model: m}}", "steps[2].promote.checkpoint: expected a text"),
    (
        HEAD + "- {name: c, promote: {model: m, checkpoint: '${steps.a.best.chekpoint}'}}",
        "p.yaml:5: steps[2].promote.checkpoint: ${steps.a.best.chekpoint}: unknown field of best",
    ),
    (
        HEAD + "- {name: d, approval: x}\n- {name: c, experiment: good.yaml, "
        "when: '${steps.d.best.trial} > 1'}",
        "step 'd' is of the kind approval, so it finds nothing: name it in needs",
    ),
    (HEAD + "schedule: daily", "schedule: expected a mapping such as"),
    (HEAD + "on: {alias: {model: m}}", "on: expected a list such as [{alias: {model: base}}]"),
    (HEAD + EVALUATE + "like: c}}", "steps[2].evaluate.like: 'c' is no experiment step"),
    (
        HEAD + EVALUATE.replace("${steps.a.best.checkpoint}", "x") + "}}",
        "like: expected the name of",
    ),
    (
        HEAD + EVALUATE + "funktion: x}}",
        "evaluate.funktion: unknown field; did you mean 'function'?",
    ),
    (HEAD + EVALUATE.replace("e:e", "e") + "}}", "evaluate.function: expected module:function"),
    (HEAD + EVALUATE.replace("e:e", f"e:{'e' * 499}") + "}}", "of at most 500 characters"),
    (HEAD + EVALUATE + "rule: {metric: a}}}", "evaluate.against: expected the model that the rule"),
    (HEAD + EVALUATE + "against: {model: m}}}", "evaluate.rule: expected a rule (rule: expected"),
    (HEAD + EVALUATE + "against: m, rule: {}}}", "evaluate.against: expected a mapping such as"),
    (
        HEAD + EVALUATE.replace("'${steps.a.best.checkpoint}'", "{model: m}") + "like: a}}",
        "evaluate.checkpoint: expected a mapping such as {model: digits, version: champion}",
    ),
    (HEAD + EVALUATE + "}}\n" + PROMOTE + "}}", "step 'c' compares with nothing: give it against"),
    (HEAD + "- {name: c, promote: {comparison: a}}", "comparison: 'a' is no evaluate step"),
    (HEAD + COMPARES + PROMOTE + "model: m}}", "promote.model: expected nothing beside comparison"),
    (HEAD + COMPARES + PROMOTE + "approval: x}}", "promote.approval: expected true or false"),
    (HEAD + "- {name: c, command: }", "steps[2].command: expected a command (a text or a list)"),
    (HEAD + "- {name: c, command: {entrypont: ls}}", "steps[2].command.entrypont: unknown field"),
    (HEAD + "- {name: c, command: {entrypoint: 3}}", "steps[2].command.entrypoint: expected"),
    (HEAD + "- {name: c, experiment: good.yaml, check: {}}", "steps[2].check: unknown field"),
    (C + "for_each: []", "0 items found, 1 to 100 are allowed"),
    (C + "for_each: x", "expected a list, or a reference to one, found 'x'"),
    (C + "with: {searcher.name: singl}", "p.yaml:7: steps[2].with.searcher.name: found 'singl'"),
    (C + "with: {entrypoint.x: 1}", "with: entrypoint.x: entrypoint is a single value"),
    (of_c("step.a.best.trial"), "found 'step'; did you mean 'steps'?"),
    (of_c("steps.aa.best.trial"), "there is no other step 'aa'"),
    (of_c("steps.a.bst.trial"), "found 'bst'; did you mean 'best'?"),
    (of_c("steps.a.best.chekpoint"), "did you mean 'checkpoint'?"),
    (of_c("steps.a.best.checkpoint.x"), "best.checkpoint is a single value"),
    (of_c("steps.a.experiment.name"), "of an experiment there is .id only"),
    (of_c("steps.a[*].best.trial"), "step 'a' has no for_each"),
    (of_c("steps.b[2].best.trial"), "step 'b' has 2 items, numbered from 0"),
    (of_c("x${steps.b[*].best.trial").replace("${x", "x"), "cannot stand inside of a text"),
    (of_c("steps.a.best.hparams.lrr"), "has no hyperparameter 'lrr'; did you mean 'lr'?"),
    (of_c("steps.a.best.hparams.net.w"), "has no hyperparameter 'w'"),
    (of_c("item"), "this step has no for_each"),
    (of_c("params.x"), "'x' is not a parameter of this pipeline"),
    ("params: {n: null}\n" + HEAD, "params.n: this parameter has no value"),
    (
        HEAD.replace(
            "experiment: good.yaml}\n- {name: b", "needs: b, experiment: good.yaml}\n- {name: b"
        ).replace("for_each", "needs: [a], for_each"),
        "these steps wait for each other: a needs b needs a",
    ),
]


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[words for _, words in WRONG])
def test_a_mistake_is_told_with_its_place(text: str, words: str) -> None:
    found = mistakes(text)
    assert any(words in line for line in found), found
    # No other message follows from the mistake.
    assert len(found) == 1, found


def result(**more: Any) -> Result:
    return Result(7, 8, None, {"lr": 0.1, "kind": "sgd"}, {"accuracy": 0.93}, **more)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("${steps.a.best.metrics.accuracy} > 0.9", True),
        ("0.95 <= ${steps.a.best.metrics.accuracy}", False),
        ("0.9 < ${steps.a.best.metrics.accuracy} < 0.95", True),
        ("not (${steps.a.best.trial} == 8 and ${steps.a.best.hparams.lr} >= -1)", False),
        ("${steps.a.best.hparams.kind} in ['adam', \"sgd\"]", True),
        ("${steps.b[1].best.trial} != 8 or ${steps.b.best.hparams.kind} not in ('sgd',)", False),
        ("0.93 in ${steps.b[*].best.metrics.accuracy}", True),
        ("${params.on} and ${params.name} == 'it''s'".replace("''", "\\'"), True),
        ("true", True),
    ],
)
def test_a_step_runs_if_its_condition_is_true(condition: str, holds: bool) -> None:
    c = {"name": "c", "experiment": "good.yaml", "when": condition}
    b = {"name": "b", "experiment": "good.yaml", "for_each": [1, 2]}
    a = {"name": "a", "experiment": "good.yaml"}
    params = {"on": True, "name": "it's"}
    draft = pipeline.read(Document({"name": "p", "params": params, "steps": [a, b, c]}, ""), load)
    step = draft.plan.steps[2]
    assert set(step.needs) == {one for one in "ab" if f"steps.{one}" in condition}
    results = {"a": [result()], "b": [result(item=1), result(item=2)]}
    assert (pipeline.skipped_because(step, results) is None) == holds


def test_a_false_condition_says_its_values_but_no_items() -> None:
    def why(condition: str) -> str | None:
        step = pipeline.PlannedStep("c", {}, when=condition)
        return pipeline.skipped_because(step, {"a": [result(item="s3cret")]})

    said = why("${steps.a.best.metrics.accuracy} > 0.95 or ${steps.a.best.item} == 'x'")
    assert said == "its condition is false: 0.93 > 0.95 or ${steps.a.best.item} == 'x'"
    for condition, words in (
        ("${steps.a.best.trial}", "8 is neither true nor false: compare it"),
        ("${steps.a.best.hparams.kind} > 1", "'sgd' > 1: these cannot be compared"),
        ("${steps.a.best.metrics.loss} > 1", "has no 'loss'"),
    ):
        with pytest.raises(pipeline.ReferenceError_, match=words):
            why(condition)


def test_mistakes_are_told_together() -> None:
    found = mistakes(
        C
        + "cachd: 1\n  with: {hyperparameters.x: '${steps.q.best.trial}', hyperparameters.y: '${item}'}"
    )
    assert len(found) == 3


def test_too_many_steps_and_experiments_are_refused() -> None:
    many = "".join(f"- {{name: s{n}, experiment: good.yaml}}\n" for n in range(65))
    assert f"at most {limits.PIPELINE_STEPS} steps" in mistakes(f"name: p\nsteps:\n{many}")[0]
    wide = "".join(
        f"- {{name: s{n}, experiment: good.yaml, for_each: {list(range(100))}}}\n"
        for n in range(11)
    )
    assert "experiments in all, found 1100" in mistakes(f"name: p\nsteps:\n{wide}")[0]


def test_unknown_values_are_not_a_mistake() -> None:
    assert (
        mistakes(
            C
            + "for_each: '${steps.b[*].best.checkpoint}'\n  with:\n"
            + "    searcher.source_checkpoint_uuid: '${item}'\n"
            + "    searcher.max_length.batches: '${steps.a.best.metrics.epochs}'\n"
            + "    hyperparameters: '${steps.a.best.hparams}'\n"
            + "    name: 'of ${steps.b.best.item}, ${params.n}'\n"
            + "params: {n: null}",
            n=3,
        )
        == []
    )


RESULTS = {
    "a": [
        Result(7, 70, "u-7", {"lr": 0.1, "on": True, "net": {"w": [1, 2]}}, {"val.loss": 0.5}, 0.5)
    ],
    "b": [
        Result(8, 80, "u-8", {"lr": 1}, {}, 0.3, True, {"f": "x"}),
        Result(9, 90, None, {"lr": 2}, {}, 0.2, True, {"f": "y"}),
        Result(10, 91, "u-10", {"lr": 3}, {}, None, True, {"f": "z"}),
    ],
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${steps.a.best.checkpoint}", "u-7"),
        ("${steps.a.best.hparams.lr}", 0.1),
        ("${steps.a.best.hparams.on}", True),
        ("on=${steps.a.best.hparams.on}, ${ steps.a.experiment.id }", "on=true, 7"),
        ("${steps.a.best.hparams.net.w[1]}", 2),
        ("${steps.a.best.hparams.net}", {"w": [1, 2]}),
        ("${steps.a.best.metrics.val.loss}", 0.5),
        ("${steps.b.best.item.f}", "y"),
        ("${steps.b.experiment.id}", 9),
        ("${steps.b[0].best.checkpoint}", "u-8"),
        ("${steps.b[*].best.hparams.lr}", [1, 2, 3]),
        ("${item[1]}", "second"),
        ("$${item}", "${item}"),
        ("${HOME}/x ${arr[0]}", "${HOME}/x ${arr[0]}"),
    ],
)
def test_a_reference_keeps_its_type(text: str, value: Any) -> None:
    step = pipeline.PlannedStep("c", {"x": text})
    found = pipeline.configuration(step, RESULTS, ["first", "second"])["x"]
    assert (found, type(found)) == (value, type(value))


def test_a_reference_that_leads_to_nothing_says_so() -> None:
    for text, words in (
        ("${steps.b.best.checkpoint}", "trial 90, the best of experiment 9, has no checkpoint"),
        ("${steps.a.best.metrics.val}", "has no 'val'"),
        ("${steps.b[7].best.trial}", "has 3 experiments"),
    ):
        with pytest.raises(references.ReferenceError_, match="(?s)" + words.replace("[", r"\[")):
            pipeline.configuration(pipeline.PlannedStep("c", {"x": text}), RESULTS)


def test_fields_are_set_where_they_are_named() -> None:
    config: dict[str, Any] = {"list": [{"a": 1}], "x": None}
    resolving.put(config, "list.0.a", 2)
    resolving.put(config, "x.y.z", 3)
    assert config == {"list": [{"a": 2}], "x": {"y": {"z": 3}}}
    with pytest.raises(references.ReferenceError_, match="list of 1 entries"):
        resolving.put(config, "list.1.a", 2)


def test_items_are_public_unless_they_may_be_secrets() -> None:
    public = pipeline.PlannedStep("a", {"hyperparameters": {"x": "${item}"}}, {"name": "n ${item}"})
    secret = pipeline.PlannedStep("a", {"environment": {"environment_variables": ["T=${item}"]}})
    assert (public.items_are_public, secret.items_are_public) == (True, False)


PROMOTE = {"model": "digits", "checkpoint": "${steps.c.best.checkpoint}"}


def test_python_says_the_same_as_yaml() -> None:
    config = load("good.yaml").data
    a = sdk.Step("a", config)
    b = sdk.Step(
        "b",
        config,
        for_each=(1, 2),
        max_concurrent=1,
        overrides={"hyperparameters.x": sdk.item},
    )
    c = sdk.Step(
        "c",
        config,
        needs=[a],
        overrides={
            "hyperparameters.lr": a.best.hparams.lr,
            "hyperparameters.all": b.all.best.checkpoint,
            "hyperparameters.one": b[1].best.trial,
            "hyperparameters.id": a.experiment_id,
        },
        when=f"{a.best.metrics.loss} < 1",
        cached=True,
    )
    d = sdk.Approval("d", "Good enough?", needs=[c])
    e = sdk.Promotion("e", "digits", c.best.checkpoint, needs=[d])
    f = sdk.Promotion("f", "digits", "${steps.c.best.checkpoint}", alias=None)
    plan = sdk.plan(sdk.Pipeline("p", [a, b, c, d, e, f])).plan
    assert [(one.kind, one.config, one.needs) for one in plan.steps[3:]] == [
        ("approval", {"question": "Good enough?"}, ("c",)),
        ("promote", {**PROMOTE, "alias": "champion"}, ("d", "c")),
        ("promote", {**PROMOTE, "alias": None}, ("c",)),
    ]
    assert plan.steps[2].needs == ("a", "b")
    assert plan.steps[2].overrides == {
        "hyperparameters.lr": "${steps.a.best.hparams.lr}",
        "hyperparameters.all": "${steps.b[*].best.checkpoint}",
        "hyperparameters.one": "${steps.b[1].best.trial}",
        "hyperparameters.id": "${steps.a.experiment.id}",
    }
    assert pipeline.PipelinePlan.from_json(plan.to_json()) == plan
    # Reading the sent text gives the same pipeline.
    assert pipeline.read(Document(plan.to_json())).plan == plan
