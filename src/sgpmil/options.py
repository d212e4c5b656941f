"""Options of commands: one frozen dataclass for Python and for the command line.

``sgpmil predict`` calls ``sgpmil.runs.predict.predict_folder(PredictOptions(...))``. The fields of
``PredictOptions`` give the options their names, types and defaults; its docstring describes them.

Messages name an option as Python does, in backticks: ```overwrite=True```. The command line shows
it as a flag: see `as_flags`.
"""

import re
from dataclasses import dataclass, fields
from inspect import cleandoc
from pathlib import Path
from typing import get_args, get_type_hints

_FLAGS = {
    'on_bad="skip"': "--skip-bad",
    'on_mismatch="skip"': "--skip-missing",
    "allow_missing=True": "--skip-missing",
    'on_shared_case="warn"': "--shared-case warn",
    'model_settings={"spatial": False}': "--set model.settings.spatial=false",
    "slide_list": "--list",
    "assignments": "--set",
    "sets": "--set",
}
"""Options that the command line calls otherwise."""


def as_flags(text: str) -> str:
    """Turn the options that a message names into flags of the command line.

    Example:
        >>> as_flags("Resume it (`resume=True`), or take fewer folds (`folds_at_once=1`).")
        'Resume it (--resume), or take fewer folds (--folds-at-once 1).'
        >>> as_flags("Make some with `sgpmil splits`.")
        'Make some with `sgpmil splits`.'
    """

    def flag(found: re.Match[str]) -> str:
        if found[1] in _FLAGS:
            return _FLAGS[found[1]]
        name, _, value = found[1].partition("=")
        option = f"--{name.replace('_', '-')}"
        return option if value in ("", "True") else f"{option} {value.strip(chr(34))}"

    return re.sub(r"`([a-z]\w*(?:=[^`]+)?)`", flag, text)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all options. A path may be given as a string, and several values as a list."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str) and Path in (hints[field.name], *get_args(hints[field.name])):
                object.__setattr__(self, field.name, Path(value))
            elif isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the texts of the fields, from the docstrings of this class and its bases.

        Example:
            >>> @dataclass(frozen=True, kw_only=True)
            ... class TrainOptions(Options):
            ...     '''Options of a training.
            ...
            ...     Args:
            ...         epochs: Number of passes
            ...             over the bags.
            ...     '''
            ...
            ...     epochs: int = 20
            >>> TrainOptions.descriptions()
            {'epochs': 'Number of passes over the bags.'}

        The command line shows a field in double backticks as an option.
        """
        texts: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            _, _, arguments = cleandoc(base.__dict__.get("__doc__") or "").partition("\nArgs:\n")
            section = arguments.split("\n\n")[0]
            for found in re.finditer(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE):
                texts[found[1]] = " ".join(found[2].split())
        return texts
