"""Validated settings: unknown keys are errors, and every error is one sentence that names the key; and strict YAML:
keys are unique, and numbers of base 8 or 60, by a leading zero or a colon, are refused.
"""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, WithJsonSchema

from shardlab.errors import UserError, choices


class Strict(BaseModel):
    """Base of all settings: unknown keys are errors, values are frozen, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


S = TypeVar("S", bound=BaseModel)


def one_of(names: Collection[str]) -> tuple[AfterValidator, WithJsonSchema]:
    """Annotations of a string that must be one of these names, such as the keys of a table."""

    def known(value: str) -> str:
        if value in names:
            return value
        close = get_close_matches(value, names, n=1)
        raise ValueError((f"did you mean {close[0]}? " if close else "") + f"known: {choices(names)}")

    return AfterValidator(known), WithJsonSchema({"type": "string", "enum": list(names)})


def check(kind: type[S], value: Any, where: str) -> S:
    """Build a settings object from ``value``.

    Raises:
        UserError: a key is unknown or a value is wrong; names the first one and what would work.
    """
    try:
        found = kind.model_validate(value)
    except ValidationError as error:
        raise _first(kind, error.errors(), where) from None
    if place := yes_for_number(value, found):
        raise UserError(f"{where}: `{'.'.join(place[:-1])}` is {place[-1]}; write a number.")
    return found


def yes_for_number(given: Any, found: Any) -> tuple[str, ...]:
    """Return the keys down to the first boolean of ``given`` that became a number in ``found``, and its text; () if
    none.

    Pydantic accepts ``True`` as 1 unless all its checks are strict, which would reject the strings that Snakemake makes
    of numbers inside ``--config key={...}``.
    """
    if isinstance(given, bool):
        return () if isinstance(found, bool) or not isinstance(found, int | float) else (str(given),)
    if isinstance(given, dict):
        pairs = {key: found.get(key) if isinstance(found, dict) else getattr(found, str(key), None) for key in given}
    elif isinstance(given, list | tuple) and isinstance(found, list | tuple):
        pairs = dict(enumerate(found))
    else:
        return ()
    for key, inner in pairs.items():
        if place := yes_for_number(given[key], inner):
            return (str(key), *place)
    return ()


def _first(kind: type[BaseModel], errors: list[Any], where: str) -> UserError:
    """Return one of pydantic's errors in one sentence: the first unknown key, which may be a misspelled one that is
    missing, or the first of all.
    """
    first = min(errors, key=lambda found: found["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        known = _keys(kind, first["loc"][:-1])
        name = str(first["loc"][-1])
        inside = [f"{each}.{name}" for each in known if name in _keys(kind, (*first["loc"][:-1], each))]
        close = inside or get_close_matches(name, known, n=1)
        hint = f"did you mean `{close[0]}`? " if close else ""
        known_text = f"known keys: {choices(known)}." if known else ""
        return UserError(f"{where}: unknown key `{key}`; {hint}{known_text}")
    if first["type"] == "missing":
        return UserError(f"{where}: the key `{key}` is missing; add it.")
    subject = f"{where}: `{key}`" if key else where
    if first["type"] == "value_error" and isinstance(first["input"], dict):
        return UserError(f"{subject}: {words(first)}.")
    return UserError(f"{subject} is {_short(first['input'])}; {words(first)}.")


def _short(value: Any) -> str:
    """Return the repr of a value, abbreviated."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def words(error: Any) -> str:
    """Rephrase a pydantic error as what would work."""
    if error["type"] == "list_type":
        return f"write a list: [{error['input']}]" if isinstance(error["input"], str) else "write a list: [...]"
    if error["type"] == "too_short":
        return "name at least one"
    if error["type"] in ("dict_type", "model_type", "model_attributes_type"):
        return "write keys and values: {key: value}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def _keys(kind: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are known at ``location`` inside ``kind`` (empty if that is not a plain object)."""
    schema = kind.model_json_schema()
    node = schema
    for part in location:
        node = node.get("properties", {}).get(str(part)) or node.get("additionalProperties", {})
        options = [node, *node.get("anyOf", [])]
        reference = next((o["$ref"] for o in options if isinstance(o, dict) and "$ref" in o), None)
        if reference:
            node = schema["$defs"][reference.rsplit("/", 1)[1]]
    return list(node.get("properties", {}))


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses what it would otherwise change silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.YAMLError(f"the key `{key.value}` is duplicated in line {key.start_mark.line + 1}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _number(loader: _Loader, node: Any) -> int | float:
    digits, line = node.value.lstrip("+-"), node.start_mark.line + 1
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        raise yaml.YAMLError(f"{node.value} in line {line} begins with 0; write {int(digits)}")
    if ":" in digits:
        raise yaml.YAMLError(f"{node.value} in line {line} is read with base 60; write one number, or text in quotes")
    return float(loader.construct_yaml_float(node)) if "float" in node.tag else int(loader.construct_yaml_int(node))


for kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{kind}", _number)


def parse_yaml(text: str) -> Any:
    """Parse a YAML text; an empty one is {}.

    Raises:
        yaml.YAMLError: it is not YAML, or has a duplicate key, or a number of another base.
    """
    value = yaml.load(text, Loader=_Loader)
    return {} if value is None else value
