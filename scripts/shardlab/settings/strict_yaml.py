"""Strict YAML: keys are unique text, numbers with a leading zero are refused (not octal)."""

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses what it would otherwise change silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                if key.tag != "tag:yaml.org,2002:str":
                    kind = key.tag.rpartition(":")[2]
                    raise yaml.YAMLError(
                        f"the key {key.value} in line {key.start_mark.line + 1} is read as {kind}, not as text; "
                        f"put it in quotes: '{key.value}'"
                    )
                if key.value in seen:
                    raise yaml.YAMLError(f"the key `{key.value}` is duplicated in line {key.start_mark.line + 1}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _integer(loader: _Loader, node: Any) -> int:
    digits = node.value.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        raise yaml.YAMLError(f"{node.value} in line {node.start_mark.line + 1} begins with 0; write {int(digits)}")
    return int(loader.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def parse_yaml(text: str) -> Any:
    """Parse a YAML text; an empty one is {}.

    Raises:
        yaml.YAMLError: it is not YAML, or has a duplicate key, one that is not text, or a number that begins with 0.
    """
    value = yaml.load(text, Loader=_Loader)
    return {} if value is None else value
