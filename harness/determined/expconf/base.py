"""The parts that all sections of the configuration share.

A configuration section is a pydantic model that refuses unknown fields and values of another type
(``"3"`` is not a number). ``null`` means "not given" everywhere. Unions are always decided by a tag
before their members are tried, so that an error is about the member the user meant.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from determined.common.wire import limits
from determined.expconf.masking import SECRET_FIELDS
from determined.expconf.problems import MASK

#: Begins the steps that pydantic adds to an error's location for a union's member; no key has it.
MEMBER_MARK = "\0"
#: Types of the errors raised here and in the sections; see ``translate.py``.
BROKEN_RULE, NO_MEMBER, WRONG_SHAPE = "broken_rule", "no_member", "wrong_shape"


class Section(BaseModel):
    """A mapping of the configuration with a fixed set of fields."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    #: Fields in which null is a value with a meaning.
    null_fields: ClassVar[frozenset[str]] = frozenset()
    #: Whether the section is accepted only for old experiments; it is never suggested.
    retired: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        droppable = cls.model_fields.keys() - cls.null_fields
        return {k: v for k, v in data.items() if v is not None or k not in droppable}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, MASK if name in SECRET_FIELDS and value is not None else value


class _Context(dict[str, Any]):
    """An error's context that can stand in a type annotation (those have to be hashable)."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def broken(message: str, allowed: str = "") -> PydanticCustomError:
    """The error of a rule of this project; ``message`` is shown unchanged."""
    context = {"message": message, "allowed": allowed}
    return PydanticCustomError(BROKEN_RULE, "{message}", context)


def _whole(value: Any) -> Any:
    """Accepts 1e3 as an integer: users write it for 1000, and JSON does not distinguish the two."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


WHOLE = BeforeValidator(_whole)

Int = Annotated[int, WHOLE]
Natural = Annotated[int, Field(ge=0), WHOLE]
Positive = Annotated[int, Field(ge=1), WHOLE]
#: Of slots, tries, seconds, and ids: as the database keeps and adds them.
Count = Annotated[int, Field(ge=0, le=limits.INT32), WHOLE]
PositiveCount = Annotated[int, Field(ge=1, le=limits.INT32), WHOLE]
Port = Annotated[int, Field(ge=1, le=65535), WHOLE]
Text = Annotated[str, Field(min_length=1)]
AbsolutePath = Annotated[str, Field(pattern=r"^/")]


class AlsoAccepts:
    """Adds a second form to a field's JSON schema; the field's validators already accept it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [self.schema, handler(core)]}


def member(name: str) -> Tag:
    """Marks a union's member; models are marked with their class name."""
    return Tag(MEMBER_MARK + name)


def by_key(key: str, members: Mapping[str, str]) -> Discriminator:
    """Chooses a union's member by the value of one of its fields (``name``, ``type``).

    Args:
        key: the field.
        members: its allowed values and the class name of the member each chooses.
    """

    def choose(value: Any) -> str | None:
        if isinstance(value, Section):
            return MEMBER_MARK + type(value).__name__
        chosen = value.get(key) if isinstance(value, Mapping) else None
        found = members.get(chosen) if isinstance(chosen, str) else None
        return None if found is None else MEMBER_MARK + found

    return by_choice(choose, key, members)


def by_choice(
    choose: Callable[[Any], str | None], key: str, allowed: Iterable[str]
) -> Discriminator:
    """Chooses a union's member by a function that returns its mark, or None if ``key`` is wrong."""
    return Discriminator(
        choose,
        custom_error_type=NO_MEMBER,
        custom_error_message="{key}",
        custom_error_context=_Context(key=key, allowed=",".join(allowed)),
    )


def by_shape(expected: str, **members: type | tuple[type, ...]) -> Discriminator:
    """Chooses a union's member by the Python type of the value.

    Args:
        expected: the allowed values, in words.
        members: for each member's mark, the types it takes.
    """

    def choose(value: Any) -> str | None:
        if isinstance(value, bool):
            return None
        return next(
            (MEMBER_MARK + name for name, kind in members.items() if isinstance(value, kind)), None
        )

    return Discriminator(
        choose,
        custom_error_type=WRONG_SHAPE,
        custom_error_message="{expected}",
        custom_error_context=_Context(expected=expected),
    )
