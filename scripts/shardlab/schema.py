"""Checked settings: unknown keys are errors, and every error is one sentence that names the key."""

from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from shardlab.errors import UserError, choices


class Strict(BaseModel):
    """Base of all settings: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=BaseModel)


def check(kind: type[S], value: Any, where: str) -> S:
    """Make a settings object of ``value``.

    Raises:
        UserError: a key is unknown or a value is wrong; names the first one and what would work.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole"
        if first["type"] == "extra_forbidden":
            known = _keys(kind, first["loc"][:-1])
            close = get_close_matches(str(first["loc"][-1]), known, n=1)
            hint = f"did you mean `{close[0]}`? " if close else ""
            known_text = f"Known keys: {choices(known)}." if known else ""
            raise UserError(f"{where}: `{key}` is not a key; {hint}{known_text}") from None
        if first["type"] == "missing":
            raise UserError(f"{where}: the key `{key}` is missing; add it.") from None
        message = first["msg"][0].lower() + first["msg"][1:]
        raise UserError(f"{where}: `{key}` is {first['input']!r}; {message}.") from None


def _keys(kind: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Keys that are known at ``location`` inside ``kind`` (empty where that is not a plain object)."""
    schema = kind.model_json_schema()
    node = schema
    for part in location:
        node = node.get("properties", {}).get(str(part)) or node.get("additionalProperties", {})
        options = [node, *node.get("anyOf", [])]
        reference = next((o["$ref"] for o in options if isinstance(o, dict) and "$ref" in o), None)
        if reference:
            node = schema["$defs"][reference.rsplit("/", 1)[1]]
    return list(node.get("properties", {}))
