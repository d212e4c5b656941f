"""The `sgpmil` command.

The program prints an error that a user can cause as one sentence and exits with code 2; ``--debug``
shows the traceback. Options may be written with dashes or underscores. A command is imported when
it runs, so that ``sgpmil --help`` answers at once.
"""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

import sgpmil
from sgpmil.cli.commands import paragraphs
from sgpmil.errors import SgpmilError
from sgpmil.options import as_flags
from sgpmil.processes import is_first_process, repeat_lost_interrupts

_INTERRUPTED = 130

COMMANDS = {
    "demo": ("demo", "Run the whole flow once on synthetic slides; nothing to download."),
    "doctor": ("doctor", "Check the installation, the machine and the optional parts."),
    "init": ("training", "Write a commented recipe to start from."),
    "phantom": ("slides", "Write synthetic slides with annotated tumours."),
    "extract": ("slides", "Turn slides into patch embeddings."),
    "inspect": ("bags", "Summarise slides, patients, classes and bags; find problems."),
    "pack": ("bags", "Pack bag files into one memory-mapped store that reads fast."),
    "splits": ("bags", "Make patient-grouped, stratified folds, or check existing ones."),
    "train": ("training", "Train on every fold and test each fold on its test slides."),
    "tune": ("training", "Search for settings that are best on validation slides."),
    "predict": ("models", "Predict slides, with or without labels."),
    "evaluate": ("evaluation", "Measure predictions of this package or of another system."),
    "compare": ("evaluation", "Test whether one run is better than another."),
    "explain": ("reports", "Write maps, patches to look at and prototypes of a run."),
    "report": ("reports", "Write a run into one HTML page, and slides into case reports."),
    "view": ("viewer", "Look through the slides of a run in a browser."),
    "export": ("models", "Export a model as one folder, for others or for the hub."),
    "bench": ("experiments", "Measure the time and memory of training and prediction."),
    "lipschitz": ("models", "Bound how much a model amplifies a change of an instance."),
    "experiment": ("experiments", "Compare models on real data sets."),
    "import-released": ("models", "Convert a checkpoint of the released SGPMIL code."),
}
"""Module and one line of help of each command."""


class _Commands(TyperGroup):
    """Commands that are imported when they run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and _load(name or ""), rest


def _load(name: str) -> Any:
    file, line = COMMANDS[name]
    module = import_module(f"sgpmil.cli.{file}")
    found = getattr(module, "app" if name == "experiment" else name.replace("-", "_"))
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    _, *more = paragraphs(found)
    alone = typer.Typer(rich_markup_mode="rich", add_completion=False)
    alone.command(name, help="\n\n".join([line, *more]))(found)
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Probabilistic multiple instance learning on whole-slide images. The models predict the "
    "class of a slide, show which patches decide, and state how certain both are.",
)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    del debug  # `run` reads it before the arguments are parsed, so that it covers every error.
    if version:
        typer.echo(f"sgpmil {sgpmil.__version__}")
        raise typer.Exit


def _stub() -> Callable[[], None]:
    def stub() -> None: ...

    return stub


for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(_stub())


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    # --debug is global: taken wherever it stands.
    given = [_dashed(argument) for argument in given if argument != "--debug"]
    try:
        with warnings.catch_warnings(), repeat_lost_interrupts():
            warnings.showwarning = _show_warning
            app(args=given, prog_name="sgpmil")
    except SgpmilError as error:
        if debug:
            raise
        _stop(as_flags(str(error)), 2)
    except KeyboardInterrupt:
        _say_interrupted(given)
        _leave(is_program=arguments is None)
    except SystemExit as stop:
        # typer turns Ctrl-C into an exit. An experiment has already said how to resume.
        if stop.code == _INTERRUPTED:
            if given[:1] != ["experiment"]:
                _say_interrupted(given)
            _leave(is_program=arguments is None)
        raise
    except BrokenPipeError:
        # The reader of our output (head, less) is gone; nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if debug:
            raise
        _stop(_sentence(error), 2)


def _sentence(error: OSError) -> str:
    where, why = error.filename or "a file", error.strerror or error
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return f"Expected a folder, but {where} is a file ({why}). Choose another place."
    if isinstance(error, PermissionError):
        return (
            f"Expected a place that this user may read and write, but got '{why}' ({where}). "
            "Choose another folder, or change the permissions."
        )
    if error.errno == errno.ENOSPC:
        return f"The disk is full ({where}). Free some space and run the command again."
    if error.errno in (errno.EDQUOT, errno.EFBIG):
        return (
            f"Could not write {where} ({why}): a limit of this system or user is reached. Free "
            "some space, or write elsewhere, and run the command again."
        )
    return f"The system could not open or write {where}: {why}."


def _dashed(argument: str) -> str:
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _say_interrupted(given: Sequence[str]) -> None:
    command = given[0] if given else ""
    how = ""
    if command in ("train", "demo", "tune"):
        how = " Continue with --resume."
    elif command in ("extract", "phantom", "explain", "predict"):
        how = " Run the command again to continue."
    if is_first_process():
        _say(f"Interrupted.{how}")


def _leave(*, is_program: bool) -> None:
    """Exit after an interruption.

    Files are closed and processes stopped by now. Threads of libraries may still be at work, and
    would crash if Python shut down first. So a program ends at once.
    """
    if is_program:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_INTERRUPTED)
    raise SystemExit(_INTERRUPTED)


def _stop(text: str, code: int) -> None:
    _say(text, "red")
    raise SystemExit(code)


def _say(text: str, style: str | None = None) -> None:
    from sgpmil.terminal import HarmlessConsole

    console = HarmlessConsole(stderr=True, soft_wrap=True)
    console.print(text, style=style, markup=False, highlight=False)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print our warnings as sentences; leave out the libraries' own."""
    del lineno, file, line
    if "sgpmil" in Path(filename).parts or category.__module__.startswith("sgpmil"):
        from sgpmil.terminal import harmless

        typer.secho(harmless(as_flags(f"Warning: {message}")), fg="yellow", err=True)
