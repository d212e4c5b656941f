"""The `sgpmil` command.

An error a user can cause is printed as one sentence, with exit code 2; ``--debug`` shows the
traceback. Options may be written with dashes or underscores.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import typer
from rich.console import Console

import sgpmil
from sgpmil.cli import (
    bags_commands,
    bench_command,
    compare_command,
    demo_command,
    doctor_command,
    evaluate_command,
    experiment_command,
    explain_command,
    extract_command,
    lipschitz_command,
    phantom_command,
    predict_command,
    report_command,
    train_command,
)
from sgpmil.cli.output import console
from sgpmil.errors import SgpmilError

__all__ = ["app", "run"]

_INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Probabilistic multiple instance learning on whole-slide images: what a slide is, which "
    "patches say so, and how sure the model is of both.",
)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    del debug  # Read from the arguments before they are parsed, so that it covers every error.
    if version:
        console.print(f"sgpmil {sgpmil.__version__}", highlight=False)
        raise typer.Exit


app.command("demo")(demo_command.demo)
app.command("doctor")(doctor_command.doctor)
app.command("init")(train_command.init)
app.command("phantom")(phantom_command.phantom)
app.command("extract")(extract_command.extract)
app.command("inspect")(bags_commands.inspect)
app.command("pack")(bags_commands.pack)
app.command("splits")(bags_commands.splits)
app.command("train")(train_command.train)
app.command("predict")(predict_command.predict)
app.command("evaluate")(evaluate_command.evaluate)
app.command("compare")(compare_command.compare)
app.command("explain")(explain_command.explain)
app.command("report")(report_command.report)
app.command("bench")(bench_command.bench)
app.command("lipschitz")(lipschitz_command.lipschitz)
app.add_typer(experiment_command.app, name="experiment")
app.command("import-released")(predict_command.import_released)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    # --debug is global: taken wherever it stands.
    given = [_dashed(argument) for argument in given if argument != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app(args=given, prog_name="sgpmil")
    except SgpmilError as error:
        if debug:
            raise
        _stop(str(error), 2)
    except KeyboardInterrupt:
        _say_interrupted(given)
        _leave(is_program=arguments is None)
    except SystemExit as stop:
        # typer makes an exit of Ctrl-C. An experiment has said how to go on.
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
        _stop(f"{error.strerror or error}: {error.filename or 'a file'}.", 2)


def _dashed(argument: str) -> str:
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _say_interrupted(given: Sequence[str]) -> None:
    command = given[0] if given else ""
    how = ""
    if command in ("train", "demo"):
        how = " Go on with --resume."
    elif command in ("extract", "phantom", "explain"):
        how = " Run it again: it goes on where it stopped."
    _say(f"Interrupted.{how}")


def _leave(*, is_program: bool) -> None:
    """Exit after an interruption.

    Files are closed and processes stopped by now. Threads of libraries may still be at work, and
    Python taken apart beneath them can crash: a program ends at once.
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
    console = Console(stderr=True, soft_wrap=True)
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
        typer.secho(f"Warning: {message}", fg="yellow", err=True)
