"""`sgpmil doctor`: a look at the installation and the machine."""

import typer

from sgpmil.cli.output import console, facts
from sgpmil.installation import OptionalPart, inspect_installation, install_command


def doctor() -> None:
    """Check the installation.

    The command shows versions, the machine and the optional parts, and ends with what to do, if
    anything. The exit code is 1 where there is something to do.

    Example: sgpmil doctor
    """
    found = inspect_installation()
    facts("Versions", found.versions)
    facts("Machine", found.machine)
    facts("Optional parts", [(f"{p.name} ({p.purpose})", _state(p)) for p in found.parts])
    if not found.problems:
        console.print("All right.")
        return
    problem, *others = found.problems
    console.print(f"To do: {problem}", style="yellow")
    for other in others:
        console.print(f"Then: {other}")
    raise typer.Exit(1)


def _state(part: OptionalPart) -> str:
    if part.lacks_file:
        return f"incomplete ({part.file_name} missing): {part.fetch}"
    if not part.missing:
        return "installed"
    how = install_command(part.name)
    if len(part.missing) == len(part.modules):
        return f"not installed: {how}"
    return f"incomplete ({', '.join(part.missing)} missing): {how}"
