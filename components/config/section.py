"""What every section of the configuration document has in common."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Document = TypeVar("Document", bound=BaseModel)
_NUM_FAULTS = 5


class Section(BaseModel):
    """An immutable part of the document. An unknown key or a value of another type is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def parsed(model: type[Document], data: bytes, uri: str, what: str) -> Document:
    """What a stored JSON document holds.

    Args:
        model: What it has to be.
        data: The document.
        uri: Where it is stored.
        what: The model in words.

    Raises:
        ValueError: it is something else; in one line, with the places at fault.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise ValueError(f"{uri} is not {what}: {faults(error)}") from None


def faults(error: ValidationError) -> str:
    """The first faults of a document in one line, each with its place."""
    found = error.errors(include_url=False, include_input=False)
    lines = [
        ".".join(map(str, fault["loc"])) + ": " * bool(fault["loc"]) + fault["msg"].removeprefix("Value error, ")
        for fault in found[:_NUM_FAULTS]
    ]
    more = [f"{len(found) - _NUM_FAULTS} more"] if len(found) > _NUM_FAULTS else []
    return "; ".join([*lines, *more])
