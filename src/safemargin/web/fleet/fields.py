"""Types of the fields in messages, and the reader that checks a message against them.

A field's description completes the sentence "<field> must be …". JSON's true is never a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from safemargin.core.text import printable
from safemargin.errors import InvalidInput, MissingExtra

try:
    from pydantic import BeforeValidator, Field, StringConstraints, TypeAdapter, ValidationError
    from pydantic.fields import FieldInfo
except ImportError as error:
    raise MissingExtra("the fleet page", extra="web") from error

MOST_SCORES = 1024
MOST_ACTIONS = 256
LARGEST_WHOLE = 2**31 - 1
LARGEST_ACTION = 2**53
"""From here on, browsers cannot represent every whole number."""
LONGEST_NAME = 60

Message = TypeVar("Message")


class Reader(Generic[Message]):
    """Reads messages as instances of one dataclass; fields it does not have are ignored."""

    def __init__(self, model: type[Message]) -> None:
        self._adapter = TypeAdapter(model)
        hints = get_type_hints(model, include_extras=True)
        self._fields = {name: FieldInfo.from_annotation(hint) for name, hint in hints.items()}

    def __call__(self, message: Mapping[str, Any]) -> Message:
        """Return the message; InvalidInput names the first field that is wrong."""
        try:
            return self._adapter.validate_python(message)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False)[0]
        name, *index = wrong["loc"]
        field = self._fields[str(name)]
        got = "nothing" if wrong["type"] == "missing" else kind_of(wrong["input"])
        found = f", got {got}" if field.repr else ""
        where = f" at index {index[0]}" if index else ""
        raise InvalidInput(f"{field.title or name} must be {field.description}{found}{where}")


def kind_of(value: Any) -> str:
    """Return what a JSON value is, for an error message."""
    kinds = {dict: "an object", list: "a list", type(None): "null"}
    return kinds.get(type(value)) or f"{value!r:.40}"


def is_number(value: Any) -> bool:
    """Whether the value is a number, not a bool, that is finite as a float."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def whole_number(*, least: int = 0, most: int = LARGEST_WHOLE) -> Any:
    """Return the constraint that a field is a whole number from `least` to `most`."""
    expected = f"a whole number from {least} to {most}"
    return Field(strict=True, ge=least, le=most, description=expected)


def shortened(most: int) -> BeforeValidator:
    """Return a conversion of any value to a printable text of at most `most` characters."""
    return BeforeValidator(lambda value: printable(str(value)[:most]))


def _refuse_unprintable(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("not printable")
    return value


def _null_as_nan(values: Any) -> Any:
    if isinstance(values, list):
        return [math.nan if each is None else each for each in values]
    return values


def _own_action(value: Any) -> Any:
    if value is None or (type(value) is int and abs(value) < LARGEST_ACTION):
        return value
    if isinstance(value, list) and len(value) <= MOST_ACTIONS:
        return [float(each) for each in value if is_number(each)]
    if type(value) is float and math.isfinite(value):
        return value
    raise ValueError("not an action")


SCORES = f"a list of 1 to {MOST_SCORES} numbers, with null for one that is not finite"
ACTION = f"an action: a number, or a list of at most {MOST_ACTIONS} numbers"
SECRET = "a text of 16 to 100 printable characters"
NAME = f"a text of 1 to {LONGEST_NAME} printable characters"
Whole = Annotated[int, whole_number()]
WholeOrNull = Annotated[int | None, whole_number()]
FiniteOrNull = Annotated[
    float | None, Field(strict=True, allow_inf_nan=False, description="a finite number or null")
]
Flag = Annotated[bool, BeforeValidator(lambda value: value is True)]
"""True only for JSON's true: any other value is false."""
ScoreList = Annotated[
    tuple[Annotated[float, Field(strict=True)], ...],
    Field(min_length=1, max_length=MOST_SCORES),
    BeforeValidator(_null_as_nan),
]
Scores = Annotated[ScoreList | None, Field(description=SCORES)]
OwnAction = Annotated[Any, BeforeValidator(_own_action), Field(description=ACTION)]
ActionNames = Annotated[
    tuple[Annotated[str, shortened(30)], ...],
    Field(max_length=MOST_ACTIONS, description=f"a list of at most {MOST_ACTIONS} texts"),
    BeforeValidator(lambda value: value or ()),
]
Label = Annotated[
    str | None,
    Field(strict=True, description="a text or null"),
    BeforeValidator(lambda text: printable(text[:200]) if isinstance(text, str) else text),
]
Name = Annotated[
    str,
    StringConstraints(strict=True, strip_whitespace=True, min_length=1, max_length=LONGEST_NAME),
    BeforeValidator(_refuse_unprintable),
    Field(description=NAME),
]
YourName = Annotated[Name, Field(title="your name", description=NAME)]
YourNameOrNull = Annotated[Name | None, Field(title="your name", description=NAME)]
Secret = Annotated[
    str,
    Field(strict=True, min_length=16, max_length=100, repr=False, description=SECRET),
    BeforeValidator(_refuse_unprintable),
]
LONGEST_SNOOZE = 86_400
SNOOZE = f"a number of seconds from 0 to {LONGEST_SNOOZE}"
Seconds = Annotated[
    float,
    Field(strict=True, allow_inf_nan=False, ge=0, le=LONGEST_SNOOZE, description=SNOOZE),
]
Index = Annotated[int, Field(strict=True, description="a whole number")]
LAST_BEAT = Field(
    strict=True, allow_inf_nan=False, description="the number of the last beat that the page heard"
)
Beat = Annotated[float, LAST_BEAT]
BeatOrNull = Annotated[float | None, LAST_BEAT]
