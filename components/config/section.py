"""What every section of the configuration document has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """An immutable part of the document. An unknown key or a value of another type is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
