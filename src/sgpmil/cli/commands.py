"""Commands made of options: each field of an options dataclass becomes an option of the shell."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import Parameter, Signature, cleandoc, get_annotations, signature
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from sgpmil.errors import SettingsError
from sgpmil.options import Options

O = TypeVar("O", bound=Options)  # noqa: E741


def command(
    options: type[O],
    *,
    arguments: Sequence[str] = (),
    lists: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function of options into a command.

    Args:
        options: The dataclass. The function takes it first, then options of its own.
        arguments: Fields that are given by position.
        lists: Fields of several values that are given as one text, separated by commas.
        names: Names of options that differ from the field's; further ones after commas.
        texts: Descriptions that differ from the field's.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(options)
        spelt = {name: (names or {}).get(name, name).replace("_", "-").split(",") for name in hints}
        option_of = {name: f"--{known[0]}" for name, known in spelt.items()}
        described = {
            name: re.sub(r"``(.+?)``", lambda found: option_of.get(found[1], found[1]), text)
            for name, text in {**options.descriptions(), **(texts or {})}.items()
        }
        owners = [get_annotations(base) for base in options.__mro__]

        def place(field: "Field[Any]") -> tuple[int, bool, int]:
            """Put arguments first, then options of the class itself, then shared ones."""
            return (
                arguments.index(field.name) if field.name in arguments else len(arguments),
                field.name in ("resume", "overwrite"),
                next(rank for rank, names in enumerate(owners) if field.name in names),
            )

        ordered = sorted(fields(options), key=place)
        made = [
            _parameter(
                field,
                str | None if field.name in lists else _shell_type(hints[field.name]),
                described.get(field.name, ""),
                option_of[field.name],
                [f"--{other}" for other in spelt[field.name][1:]],
                is_argument=field.name in arguments,
            )
            for field in ordered
        ]
        own = [
            one.replace(kind=Parameter.KEYWORD_ONLY)
            for one in list(signature(function).parameters.values())[1:]
        ]

        @wraps(function)
        def called(**given: Any) -> None:
            chosen = {}
            for field in ordered:
                value = given.pop(field.name)
                if field.name == "seed" and value is not None and value >= 2**32:
                    raise SettingsError(f"Expected `seed` below 2^32, but got {value}.")
                if field.name in lists and value is not None:
                    value = [name.strip() for name in value.split(",") if name.strip()]
                if value is not None and value != []:
                    chosen[field.name] = tuple(value) if isinstance(value, list) else value
            function(options(**chosen), **given)

        parameters = [
            *(one for one in made if one.default is Parameter.empty),
            *(one for one in made if one.default is not Parameter.empty),
            *own,
        ]
        # typer reads both.
        called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        called.__doc__ = "\n\n".join(paragraphs(function))
        del called.__wrapped__
        return called

    return decorate


def paragraphs(function: Callable[..., None]) -> list[str]:
    """Return the paragraphs of a docstring as one line each, for terminals of any width."""
    return [" ".join(text.split()) for text in cleandoc(function.__doc__ or "").split("\n\n")]


def _parameter(
    field: "Field[Any]",
    kind: Any,
    text: str,
    option: str,
    others: Sequence[str],
    *,
    is_argument: bool,
) -> Parameter:
    has_default = field.default is not MISSING or field.default_factory is not MISSING
    default: Any = field.default if field.default is not MISSING else None
    if isinstance(default, tuple) and get_origin(kind) is list:
        default = list(default) or None
        kind = kind | None if default is None else kind
    if is_argument:
        how: Any = typer.Argument(help=text)
    else:
        how = typer.Option(
            f"{option}/--no-{option[2:]}" if kind is bool and default is True else option,
            *others,
            help=text,
        )
    return Parameter(
        field.name,
        Parameter.KEYWORD_ONLY,
        default=default if has_default else Parameter.empty,
        annotation=Annotated[kind, how],
    )


def _shell_type(hint: Any) -> Any:
    """Return the type that typer reads: of several values a list."""
    if get_origin(hint) in (Union, UnionType):
        inner = [_shell_type(one) for one in get_args(hint) if one is not NoneType]
        # A number or a path may also be another type in Python, such as a tuple: the first counts.
        return inner[0] | None if len(inner) < len(get_args(hint)) else inner[0]
    if get_origin(hint) is tuple and get_args(hint)[1:] == (Ellipsis,):
        return list[get_args(hint)[0]]  # type: ignore[misc]
    return hint
