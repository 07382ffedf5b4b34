"""Reading YAML: values, places, and refusals."""

import contextlib
import json
import math
import os
import pathlib
import threading

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from yaml.nodes import Node, ScalarNode, SequenceNode

from determined.common.wire import limits
from determined.expconf import ConfigError, document, load_yaml, read_yaml
from determined.experimental._submission import read_config
from tests.costly import costly


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("-2.5e+4", -25000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0b101", 5),
        ("0o17", 15),
        ("-7", -7),
        ("0", 0),
        ("yes", True),
        ("Off", False),
        ("TRUE", True),
        ("y", "y"),
        ("~", None),
        ("", None),
        ("Null", None),
        ("'yes'", "yes"),
        ('"1e-3"', "1e-3"),
        ("12:30:45", "12:30:45"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_words_become_the_values_users_expect(text: str, value: object) -> None:
    read = load_yaml(f"x: {text}").data["x"]
    assert read == value
    assert type(read) is type(value)


def test_keys_are_text_as_typed() -> None:
    assert load_yaml("{1: a, on: b, 1e-3: c, ~: d}").data == {
        "1": "a",
        "on": "b",
        "1e-3": "c",
        "~": "d",
    }


def test_every_value_has_its_place() -> None:
    document = load_yaml("a:\n  b:\n  - c: 1\n  -\n    d: 2\n'x.y': {z: 3}\n", "file.yaml")
    assert document.line("a") == 1
    assert document.line("a.b[0].c") == 3
    assert document.line("a.b[1].d") == 5
    assert document.line(("a", "b", 1, "d")) == 5
    assert document.line(("x.y", "z")) == 6
    assert document.column(("x.y", "z")) == 9
    assert document.line("a.nothing") is None
    assert document.nearest_line(("a", "b", 1, "nothing")) == 5


def test_anchors_and_merge_keys() -> None:
    document = load_yaml(
        "base: &base {a: 1, b: 2}\nmore: &more {b: 3, c: 4}\n"
        "one: {<<: *base, a: 5}\ntwo:\n  <<: [*base, *more]\nsame: *base\n"
    )
    assert document.data["one"] == {"a": 5, "b": 2}
    assert document.data["two"] == {"a": 1, "b": 2, "c": 4}
    assert document.data["same"] == {"a": 1, "b": 2}
    assert document.line("two.c") == 2


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a: duplicate key (first on line 1)"),
        ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, "a.b: duplicate key (first on line 2)"),
        ("a:\n\tb: 1\n", 2, "a tab in column 1"),
        ("a: 1\nb:\t2\n", 2, "a tab in column 3"),
        ("a:\n  - 1\n \t- 2\n", 3, "a tab in column 2"),
        ("a: [1, 2\nb: 3\n", 2, "not YAML"),
        ("a: 1\n b: 2\n", 2, "this line, which begins in column 2: the line above has a value"),
        (
            "a:\n  b: 1\n   c: 2\n",
            3,
            "this line, which begins in column 4: the line above has a value",
        ),
        ("a:\n  b: 1\n c: 2\n", 3, "this line, which begins in column 2: all fields of a section"),
        (" a: 1\nb: 2\n", 2, "this line, which begins in column 1: all fields of a section"),
        ("a: b: c\n", 1, "a text that contains ': ' must be in quotation marks"),
        ("", 1, "expected a mapping of fields such as 'searcher:' at the top, found nothing"),
        ("- 1\n", 1, "found a list"),
        ("\nhello\n", 2, "found a single value"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
        ("a: 010\n", 1, "a: 010 could be octal or decimal; write 0o10, 10, or '010' for text"),
        ("a: .nan\n", 1, "cannot be stored"),
        ("x: 1\na: -.inf\n", 2, "cannot be stored"),
        ("a: 1e999\n", 1, "cannot be stored"),
        ("a: 9223372036854775808\n", 1, "does not fit into 64 bits"),
        ('a: "\\0"\n', 1, "NUL character"),
        ('a: "\\uD800"\n', 1, "surrogate"),
        ('"a\\0": 1\n', 1, "NUL character"),
        ("a: !!python/name:os.system\n", 1, "is not supported"),
        ("a: !!binary aGVsbG8=\n", 1, "is not supported"),
        ("a: !mine {b: 1}\n", 1, "'!mine' is not supported"),
        ("a: &a [1, *a]\n", 1, "contains the alias"),
        ("&a\n<<: *a\n", 2, "<<"),
        ("a: {<<: 3}\n", 1, "'<<' takes a mapping"),
        ("[1]: 2\n", 1, "a key must be a word"),
        ("a: 1\nb: \x07\n", 2, "U+0007"),
    ],
)
def test_refused_with_a_line(text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml(text, "c.yaml")
    assert str(caught.value).startswith(f"c.yaml:{line}: ")
    assert words in str(caught.value)


def test_all_faults_of_a_file_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml("a: 1\na: 2\nb: .inf\nb: 010\n")
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4]


def test_tabs_are_fine_inside_of_text() -> None:
    assert load_yaml('a: "x\ty"\nb: |\n  if:\n  \tdone\n').data == {
        "a": "x\ty",
        "b": "if:\n\tdone\n",
    }


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"))
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=10,
)


@costly
@given(st.dictionaries(KEYS, JSON), st.booleans())
def test_json_is_read_as_json(data: dict, pretty: bool) -> None:
    assert load_yaml(json.dumps(data, indent=2 if pretty else None)).data == data


def test_aliases_cannot_blow_up() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="expands to more than"):
        load_yaml("\n".join(lines))


def test_deep_nesting_is_refused_not_fatal() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_yaml("a: " + "[" * 5000 + "]" * 5000)


@pytest.mark.parametrize("unit", ["[", "{a: ", "- ", "- [", "a:\n@", "? "])
def test_no_deep_text_ends_the_process(unit: str) -> None:
    """libyaml's parser would: it has no bound."""
    for count in (90, 101, 3000):
        text = "".join(unit.replace("@", " " * place) for place in range(count))
        with pytest.raises(ConfigError):
            load_yaml(text)
        # Deep, and otherwise valid.
        with pytest.raises(ConfigError):
            load_yaml("a: " + "[" * count + "]" * (count - 1) + "}\n")


WORDS = [
    "a",
    "b",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "'",
    '"',
    " #",
    "#",
    "&x ",
    "*x",
    "<<: *x",
]
WORDS += [
    "---\n",
    "...\n",
    "!",
    "?",
    "~",
    "|\n  x",
    ">-\n  y\n",
    "a: b\n",
    "x:\n  - 1\n",
    "%",
    "1e5",
    "\\",
    ">",
    "|",
]


@given(st.lists(st.sampled_from(WORDS), max_size=14).map("".join))
def test_the_fast_parser_agrees_with_the_other(text: str) -> None:
    def plain(node: Node, above: tuple[int, ...] = ()) -> object:
        mark = (node.tag, node.start_mark.line, node.start_mark.column)
        if id(node) in above or isinstance(node, ScalarNode):
            return (*mark, node.value if isinstance(node, ScalarNode) else "above")
        above = (*above, id(node))
        if isinstance(node, SequenceNode):
            return (*mark, [plain(item, above) for item in node.value])
        return (*mark, [(plain(key, above), plain(value, above)) for key, value in node.value])

    fast = document._compose_fast(f"a: b\n{text}")
    if fast is not None:
        slow = document._Loader(f"a: b\n{text}", "").get_single_node()
        assert plain(fast) == plain(slow)


def test_the_examples_take_the_fast_parser() -> None:
    if not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")
    paths = list(pathlib.Path(__file__).parents[3].glob("examples/*/*.yaml"))
    taken = [document._compose_fast(path.read_text()) is not None for path in paths]
    assert len(paths) > 5
    assert sum(taken) > len(paths) / 2


def test_many_values_and_bytes_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="more than 20000 values"):
        load_yaml("".join(f"k{i}: {i}\n" for i in range(25_000)))
    with pytest.raises(ConfigError, match="at most 64 levels"):
        load_yaml("\n".join(f"{' ' * i}a:" for i in range(100)))
    large = f"a: {'x' * 2**20}"
    with pytest.raises(ConfigError, match="1048579 bytes found, at most 1048576"):
        load_yaml(large)
    path = tmp_path / "large.yaml"
    path.write_text(large)
    with pytest.raises(ConfigError, match=r"large.yaml: 1048579 bytes found"):
        read_yaml(path)


def test_files(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: \xc3\xa9\r\nb: 2\r\n")
    assert read_yaml(path).data == {"a": "é", "b": 2}
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"config\.yaml:2: the file is not UTF-8 text"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)


@given(st.text(alphabet=st.sampled_from("ab:-#&*!|>{}[]',\"\t\n 0e.?%@`<~"), max_size=40))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        document = load_yaml(text)
    except ConfigError as error:
        assert error.problems
    else:
        assert isinstance(document.data, dict)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1))
def test_numbers_as_python_writes_them_come_back(number: float, integer: int) -> None:
    data = load_yaml(f"a: {number!r}\nb: {integer!r}\n").data
    assert math.copysign(1, data["a"]) == math.copysign(1, number)
    assert data == {"a": number, "b": integer}


def test_a_pipe_is_read_once(tmp_path: pathlib.Path) -> None:
    """As in ``det e create <(sed … c.yaml)``."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "name: x\r\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
    writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
    writer.start()
    found = read_config(pipe)
    writer.join()
    assert (found.document.data["name"], found.text) == ("x", text.replace("\r", ""))


def test_a_pipe_has_the_limit_of_files(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):
            pipe.write_text("x" * (limits.CONFIG_BYTES + 2))

    threading.Thread(target=write, daemon=True).start()
    with pytest.raises(ConfigError, match=f"at most {limits.CONFIG_BYTES} are allowed"):
        read_config(pipe)
