"""The reference page names every field."""

import pathlib
import re
from collections.abc import Iterator

from determined.expconf import config, fields
from determined.expconf.base import Section

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"


def sections(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for field in section.model_fields.values():
        for inner in fields.sections_in(field.annotation):
            yield from sections(inner)


def test_every_field_is_on_the_page() -> None:
    page = re.sub(r"```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    words = {word for code in re.findall(r"`([^`]+)`", page) for word in re.findall(r"\w+", code)}
    missing = {
        f"{section.__name__}.{name}"
        for section in sections(config.ExperimentConfig)
        if not section.retired
        for name in fields.names([section])
        if name not in words and section is not config.Kerberos
    }
    assert not missing
