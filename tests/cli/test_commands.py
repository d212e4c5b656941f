from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer
from typer.testing import CliRunner

from sgpmil.cli.commands import command
from sgpmil.options import Options


@dataclass(frozen=True, kw_only=True)
class SharedOptions(Options):
    """Shared options.

    Args:
        labels: Table of
            labels.
    """

    labels: Path | None = None


@dataclass(frozen=True, kw_only=True)
class StainOptions(SharedOptions):
    """Options of `stain`.

    Args:
        slide: The slide.
        classes: Names of the classes.
        dye: The dye, for ``is_dark``.
        only: Names of slides.
        rounds: Rounds.
        is_dark: Whether to stain twice.
        draw: Whether to draw.
        overwrite: Replace.
    """

    slide: Path
    classes: tuple[str, ...] | None = None
    dye: Literal["eosin", "hematoxylin"] = "eosin"
    only: tuple[str, ...] = ()
    rounds: int | None = None
    is_dark: bool = False
    draw: bool = True
    overwrite: bool = False


received = []


@command(StainOptions, arguments=["slide"], lists=["classes"], names={"is_dark": "dark,black"})
def stain(options, loud: bool = False):
    """Stain a slide.

    It is washed, dried and
    covered.
    """
    received.append((options, loud))


def call(*arguments):
    app = typer.Typer()
    app.command()(stain)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_options_have_the_values_of_the_shell_and_else_their_defaults():
    assert call("a.svs").exit_code == 0
    assert received.pop() == (StainOptions(slide="a.svs"), False)
    given = call(
        *("a.svs", "--classes", "normal, tumor", "--dye", "hematoxylin", "--only", "a,b"),
        *("--only", "c", "--rounds", "3", "--dark", "--no-draw", "--labels", "x.csv", "--loud"),
    )
    assert given.exit_code == 0, given.output
    assert call("a.svs", "--black").exit_code == 0
    assert received.pop() == (StainOptions(slide="a.svs", is_dark=True), False)
    expected = StainOptions(
        slide=Path("a.svs"),
        classes=("normal", "tumor"),
        dye="hematoxylin",
        only=("a,b", "c"),
        rounds=3,
        is_dark=True,
        draw=False,
        labels=Path("x.csv"),
    )
    assert received.pop() == (expected, True)


def test_what_is_not_an_option_is_refused():
    for wrong in (["a.svs", "--dye", "ink"], ["a.svs", "--no-overwrite"], []):
        assert call(*wrong).exit_code == 2


def test_the_help_is_the_docstring_of_the_options():
    shown = call("--help").output
    assert "It is washed, dried and covered." in shown  # on a line of its own
    text = " ".join(shown.split())
    assert "Stain a slide." in text
    assert "Table of labels." in text
    assert "The dye, for --dark." in text
    assert text.index("--labels") < text.index("--overwrite")  # last


def test_strings_are_taken_for_paths_and_lists_for_tuples():
    options = StainOptions(slide="a.svs", only=["a"])
    assert (options.slide, options.only) == (Path("a.svs"), ("a",))
