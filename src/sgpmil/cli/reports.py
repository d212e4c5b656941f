"""`sgpmil explain` and `report`: commands that show a run."""

import shlex
from collections import Counter
from pathlib import Path

import typer

from sgpmil.cli.commands import command
from sgpmil.cli.output import console, facts, listed, print_unfinished
from sgpmil.explanation.run_explanation import ExplainOptions
from sgpmil.notebook import counted
from sgpmil.progress import progress_bar
from sgpmil.report.explanation_files import WrittenExplanation, write_explanation
from sgpmil.report.pages.run_report import ReportOptions
from sgpmil.report.report_files import write_report


@command(
    ExplainOptions,
    arguments=["run"],
    lists=["regions"],
    names={"class_name": "class"},
    texts={"run": "A run, the folder of a fold, or of predictions (predict)."},
)
def explain(options: ExplainOptions) -> None:
    """Write maps, patches and prototypes.

    A stopped explanation resumes when the command runs again.

    Example: sgpmil explain runs/latest --slides slides --most 10
    """
    with progress_bar("Explaining", None, "slides") as bar:
        done = write_explanation(options, progress=bar)
    print_unfinished(done.material)
    _print_explanation(done, options.run)


def _print_explanation(done: WrittenExplanation, run: Path) -> None:
    counts: Counter[str] = Counter(slide.status for slide in done.slides)
    rows = [("slides", str(len(done.slides)))]
    names = {"done": "explained", "kept": "existing", "failed": "failed"}
    rows += [(text, str(counts[status])) for status, text in names.items() if counts[status]]
    folder = done.folder.path
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sum(1 for path in part.rglob("*") if path.is_file())
        rows.append((f"{part.name}/", counted(files, "file")))
    rows.append(("slides.csv", "the least certain first"))
    facts(f"Explanation in {folder}", rows)
    for note in done.notes:
        console.print(note)
    failed = [slide for slide in done.slides if slide.status == "failed"]
    for slide in failed:
        console.print(f"{slide.slide_id}: {slide.reason}", style="red")
    again = " --overwrite" if (run / "report.html").exists() else ""
    console.print(f"Next: sgpmil report {shlex.quote(str(run))}{again}")
    if failed:
        raise typer.Exit(1)


@command(
    ReportOptions,
    arguments=["run"],
    lists=["regions"],
    texts={"run": "A run, the folder of a fold or of predictions, or a table of another system."},
)
def report(options: ReportOptions) -> None:
    """Write a run into one page.

    The page opens in any browser, without other files.

    Example: sgpmil report runs/latest --slides slides --case slide-07
    """
    with progress_bar("Reporting", None, "slides") as bar:
        written = write_report(options, bar)
    if written.report is not None:
        console.print(f"Written: {written.page} ({written.page.stat().st_size / 1e6:.1f} MB)")
    if written.cases:
        slides = counted(len(written.cases), "slide")
        console.print(f"Case reports of {slides}, HTML and PDF: {written.case_folder}")
    if written.report is None:
        console.print(f"{written.page} links to its case reports, and is else as it was.")
    if written.kept:
        verb = "has a case report" if len(written.kept) == 1 else "have case reports"
        console.print(f"{listed(written.kept)} {verb} already: --overwrite writes all again.")
    num_warnings = 0 if written.report is None else written.report.num_warnings
    if num_warnings:
        verb = "is a warning: look at it" if num_warnings == 1 else "are warnings: look at them"
        console.print(f"{num_warnings} of its checks {verb} first.")
