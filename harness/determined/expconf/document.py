"""Reading YAML with the position of every value, so that errors can name lines."""

import os
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.scanner import Scanner

from determined.common.wire import limits
from determined.expconf import paths, scalars
from determined.expconf.paths import Path
from determined.expconf.problems import ConfigError, Problem

#: A short text with aliases of aliases can stand for billions of values.
MAX_VALUES = limits.CONFIG_VALUES

_TOO_MANY = f"the file expands to more than {MAX_VALUES} values, which is the most that is allowed"

_PREFIX = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Document:
    """The data of a YAML file, and the position of each value in the text."""

    data: dict[str, Any]
    source: str = "<config>"
    #: path -> (line, column) of its key or list item, both from 1
    marks: dict[Path, tuple[int, int]] = field(default_factory=dict, repr=False)
    #: the paths that the command line set (``--config``), so that mistakes are not looked for in the text
    overridden: frozenset[Path] = frozenset()

    def line(self, path: Path | str) -> int | None:
        """The line of a value (of its key, in a mapping), from 1; None if the path does not exist."""
        return self._mark(path)[0]

    def column(self, path: Path | str) -> int | None:
        """The column of a value (of its key, in a mapping), from 1; None if the path does not exist."""
        return self._mark(path)[1]

    def nearest_line(self, path: Path) -> int | None:
        """The line of the value, or of the innermost section around it that is in the file."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.marks:
                return self.marks[path[:end]][0]
        return None

    def is_overridden(self, path: Path) -> bool:
        """Whether the value at the path comes from the command line: set, or made as a section for one."""
        if any(path[:end] in self.overridden for end in range(1, len(path) + 1)):
            return True
        return path not in self.marks and any(one[: len(path)] == path for one in self.overridden)

    def _mark(self, path: Path | str) -> tuple[int, int] | tuple[None, None]:
        key = paths.parse(path) if isinstance(path, str) else tuple(path)
        return self.marks.get(key, (None, None))


def load_yaml(text: str, source: str = "<config>") -> Document:
    """Read a YAML mapping.

    Raises:
        ConfigError: the text is not YAML, is not a mapping, contains a tab in its structure, repeats
            a key, contains a value that JSON cannot hold, or is larger or deeper than
            ``determined.common.wire.limits`` allows. Each problem has its line.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limits.CONFIG_BYTES:
        message = f"{size} bytes found, at most {limits.CONFIG_BYTES} are allowed"
        raise ConfigError([_problem(source, None, message)])
    try:
        root = _compose_fast(text) or _Loader(text, source).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(error, text, source)]) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise ConfigError([_problem(source, line, message)]) from None
    except RecursionError:
        raise ConfigError([_problem(source, None, "the values are nested too deeply")]) from None
    if not isinstance(root, MappingNode):
        found = "nothing" if root is None else _kind(root)
        line = root.start_mark.line + 1 if root is not None else 1
        message = f"expected a mapping of fields such as 'searcher:' at the top, found {found}"
        raise ConfigError([_problem(source, line, message)])
    builder = _Builder(source)
    try:
        data = builder.mapping(root, ())
    except RecursionError:
        raise ConfigError([_problem(source, None, "the values are nested too deeply")]) from None
    if builder.problems:
        raise ConfigError(builder.problems)
    return Document(data, source, builder.marks)


def read_yaml(path: str | pathlib.Path) -> Document:
    """Read a YAML file. Errors name its path.

    Raises:
        ConfigError: as :func:`load_yaml`, or because the file cannot be read.
    """
    return load_yaml(read_text(path), source=str(path))


def read_text(path: str | pathlib.Path) -> str:
    """The text of a configuration's file, which may be a pipe: it is read once.

    Raises:
        ConfigError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with pathlib.Path(path).open("rb") as file:
            content = file.read(limits.CONFIG_BYTES + 1)
            size = max(len(content), os.fstat(file.fileno()).st_size)
    except OSError as error:
        message = f"the file cannot be read: {error.strerror or error}"
        raise ConfigError([_problem(str(path), None, message)]) from None
    if size > limits.CONFIG_BYTES:
        message = f"{size} bytes found, at most {limits.CONFIG_BYTES} are allowed"
        raise ConfigError([_problem(str(path), None, message)])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError([_problem(str(path), line, "the file is not UTF-8 text")]) from None
    # As a file opened as text has it.
    return text.replace("\r\n", "\n").replace("\r", "\n")


class _Loader(Reader, Scanner, Parser, Composer, scalars.ConfigResolver):
    """PyYAML's parser up to the node graph. The values are built here, with their positions."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._nodes = 0
        self._depth = 0
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        scalars.ConfigResolver.__init__(self)

    # Both stop the parser at once: its time and stack grow with the number of open collections.

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= limits.DEPTH:
            raise _too_deep(self._source, self.get_mark().line)
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self._nodes += 1
        self._depth += 1
        line = self.peek_event().start_mark.line
        if self._nodes > 2 * MAX_VALUES:
            raise ConfigError([_problem(self._source, line + 1, _TOO_MANY)])
        if self._depth > limits.DEPTH + 1:
            raise _too_deep(self._source, line)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _too_deep(source: str, line: int) -> ConfigError:
    message = f"the values are nested too deeply: at most {limits.DEPTH} levels are allowed"
    return ConfigError([_problem(source, line + 1, message)])


try:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class _FastLoader(CParser, scalars.ConfigResolver):
        """libyaml's parser: a tenth of the time."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            scalars.ConfigResolver.__init__(self)

except ImportError:  # PyYAML was built without libyaml
    _FastLoader = None  # type: ignore[assignment, misc]

# What the two parsers understand differently (tags, complex keys, escapes, a comment right behind the
# sign of a block), and all that is not printable ASCII.
_NOT_ALIKE = re.compile(r"[^\n\x20-\x7e]|[!?\\]|[|>][-+0-9]*#")
_LEADING = re.compile(r"^[ -]{100}", re.MULTILINE)
_MAX_OPENERS = 100


def _compose_fast(text: str) -> Node | None:
    """The node graph of a text that both parsers understand alike; None: ask the other one.

    libyaml's parser does not limit its depth, and would end the process. Mistakes, too, are the other one's
    to explain.
    """
    # A text has no more values than characters; the other parser counts them while it reads.
    deep = text.count("[") + text.count("{") > _MAX_OPENERS or _LEADING.search(text)
    if _FastLoader is None or deep or len(text) > MAX_VALUES or _NOT_ALIKE.search(text):
        return None
    try:
        root = _FastLoader(text).get_single_node()
    except yaml.YAMLError:
        return None
    return root if isinstance(root, MappingNode) else None


class _Builder:
    """Turns the node graph into plain data, and collects positions and problems."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.marks: dict[Path, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._values = 0

    def value(self, node: Node, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise ConfigError([_problem(self.source, node.start_mark.line + 1, _TOO_MANY)])
        if len(path) > limits.DEPTH:
            raise _too_deep(self.source, node.start_mark.line)
        if id(node) in self._open:
            return self._refuse(node, path, "an alias refers to a value that contains the alias")
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self.mapping(node, path)
            assert isinstance(node, SequenceNode)  # the third and last kind of node
            return self._sequence(node, path)
        finally:
            self._open.discard(id(node))

    def mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        self._check_tag(node, path, "map")
        data: dict[str, Any] = {}
        first_line: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_PREFIX}merge":
                continue
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode) or not key_node.value:
                self._refuse(key_node, path, "a key must be a word")
                continue
            try:
                # As typed: `1:` is the field "1", `on:` the field "on".
                key = scalars.construct("str", key_node.value)
            except scalars.ScalarError as error:
                self._refuse(key_node, path, str(error))
                continue
            if key in first_line:
                message = f"duplicate key (first on line {first_line[key]})"
                self._refuse(key_node, (*path, key), message)
                continue
            first_line[key] = line
            self.marks[(*path, key)] = (line, key_node.start_mark.column + 1)
            data[key] = self.value(value_node, (*path, key))
        for merged in self._merged(node, path):
            for key_node, value_node in merged.value:
                key = str(key_node.value)
                if key not in data:
                    mark = key_node.start_mark
                    self.marks[(*path, key)] = (mark.line + 1, mark.column + 1)
                    data[key] = self.value(value_node, (*path, key))
        return data

    def _merged(self, node: MappingNode, path: Path) -> Iterator[MappingNode]:
        """The mappings that `<<` brings in, most important first."""
        for key_node, value_node in node.value:
            if key_node.tag != f"{_PREFIX}merge":
                continue
            listed = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
            for merged in listed:
                if not isinstance(merged, MappingNode) or id(merged) in self._open:
                    self._refuse(key_node, path, "'<<' takes a mapping or a list of mappings")
                    continue
                yield merged
                self._open.add(id(merged))
                try:
                    yield from self._merged(merged, path)
                finally:
                    self._open.discard(id(merged))

    def _sequence(self, node: SequenceNode, path: Path) -> list[Any]:
        self._check_tag(node, path, "seq")
        items = []
        for index, item in enumerate(node.value):
            self.marks[(*path, index)] = (item.start_mark.line + 1, item.start_mark.column + 1)
            items.append(self.value(item, (*path, index)))
        return items

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        try:
            return scalars.construct(node.tag.removeprefix(_PREFIX), node.value)
        except scalars.ScalarError as error:
            return self._refuse(node, path, str(error))

    def _check_tag(self, node: Node, path: Path, expected: str) -> None:
        if node.tag != f"{_PREFIX}{expected}":
            self._refuse(node, path, f"the YAML tag {node.tag!r} is not supported")

    def _refuse(self, node: Node, path: Path, message: str) -> None:
        self.problems.append(
            _problem(self.source, node.start_mark.line + 1, message, paths.render(path))
        )


def _problem(source: str, line: int | None, message: str, path: str = "") -> Problem:
    return Problem(path, line, None, None, None, message, source)


def _kind(node: Node) -> str:
    if isinstance(node, SequenceNode):
        return "a list"
    return "nothing" if node.tag == f"{_PREFIX}null" else "a single value"


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, source: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return _problem(source, None, f"not YAML: {error.problem}")
    lines = text.split("\n")
    line = lines[mark.line] if mark.line < len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if line[mark.column : mark.column + 1] == "\t" or "\t" in indent:
        column = (line.index("\t") if "\t" in indent else mark.column) + 1
        message = f"a tab in column {column}: YAML allows only spaces for indenting and spacing"
        return _problem(source, mark.line + 1, message)
    message = f"not YAML: {error.problem}"
    if error.context:
        message += f" ({error.context})"
    return _problem(
        source, mark.line + 1, message + _indentation(error.problem or "", lines, mark.line)
    )


def _indentation(problem: str, lines: list[str], at: int) -> str:
    """What to look at, when the mistake is most likely in the spaces before a line."""
    line = lines[at] if at < len(lines) else ""
    here = len(line) - len(line.lstrip())
    advice = f"; check the indentation of this line, which begins in column {here + 1}: "
    if problem.startswith("mapping values are not allowed"):
        above = next(
            (one for one in reversed(lines[:at]) if one.strip() and one.lstrip()[0] != "#"), ""
        )
        if here > len(above) - len(above.lstrip()):
            return f"{advice}the line above has a value, so that nothing can stand below it"
        return "; a text that contains ': ' must be in quotation marks"
    if problem.startswith(("expected <block end>", "expected '<document start>'")):
        return f"{advice}all fields of a section begin in the same column"
    return ""
