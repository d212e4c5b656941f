"""Options of commands: one frozen dataclass for Python and for the command line.

``sgpmil predict`` calls ``sgpmil.runs.predict.predict_folder(PredictOptions(...))``. The fields of
``PredictOptions`` give the options their names, types and defaults; its docstring describes them.
"""

import re
from dataclasses import dataclass, fields
from inspect import cleandoc
from pathlib import Path
from typing import get_args, get_type_hints


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
