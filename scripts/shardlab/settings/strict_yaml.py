"""Strict YAML: keys are unique; numbers of base 8 or 60, by a leading zero or a colon, are refused."""

from typing import Any

import yaml


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
