"""Values of settings as YAML, from files and words that nobody has checked."""

from typing import Any

import yaml

LONGEST = 2**20
"""Characters of the longest text, and of all that it stands for."""
_MOST_VALUES = 10_000
"""Values of the largest text, counted as often as aliases (``*name``) repeat them."""
_LONGEST_NUMBER = 100
"""Characters of the longest number: beyond 4,300 digits Python refuses to show one."""


class _Loader(yaml.SafeLoader):
    """Plain YAML without merge keys, which repeat their content while it is read."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise ValueError("a merge key (<<), which is not read; write the values out")

    def short_number(self, node: yaml.ScalarNode) -> Any:
        if len(node.value) > _LONGEST_NUMBER:
            raise ValueError(f"a number of {len(node.value)} characters")
        if node.tag.endswith("float"):
            return self.construct_yaml_float(node)
        return self.construct_yaml_int(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.short_number)


def read_yaml_text(text: str) -> Any:
    """Read YAML; whatever damaged text raises is for the caller to put into a sentence.

    Raises:
        ValueError: It is too long, has merge keys or endless numbers, or repeats itself.
        Exception: It is no YAML.

    Example:
        >>> read_yaml_text("{rate: 0.1, dims: [8, 4]}")
        {'rate': 0.1, 'dims': [8, 4]}
    """
    if len(text) > LONGEST:
        raise ValueError(f"more than {LONGEST} characters")
    content = yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    _refuse_repetitions(content)
    return content


def _refuse_repetitions(content: Any) -> None:
    """Refuse what aliases blow up: a few lines can name a billion values, or themselves."""
    waiting, count, length = [content], 0, 0
    while waiting:
        value = waiting.pop()
        count += 1
        if count > _MOST_VALUES:
            raise ValueError(f"more than {_MOST_VALUES} values")
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set)):
            waiting += value
        elif isinstance(value, (str, bytes)):
            length += len(value)
            if length > LONGEST:
                raise ValueError(f"text that is repeated to more than {LONGEST} characters")
