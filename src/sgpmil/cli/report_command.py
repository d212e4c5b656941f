"""`sgpmil report`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from sgpmil.cli.annotation_options import (
    AnnotationsPath,
    MaskDownsample,
    MinCoverage,
    Regions,
    annotation_folder,
)
from sgpmil.cli.material_options import Embeddings, Mpp, NucleiPath, SlidesPath
from sgpmil.cli.options import Overwrite
from sgpmil.cli.output import console, counting
from sgpmil.errors import SettingsError

if TYPE_CHECKING:
    from sgpmil.report.pages.case_report import CaseReports

__all__ = ["report"]


def report(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run, the folder of a fold or of predictions, or a table of another system's."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Page to write; RUN/report.html unless told otherwise.")
    ] = None,
    slides: SlidesPath = None,
    annotations: AnnotationsPath = None,
    regions: Regions = None,
    min_coverage: MinCoverage = 0.5,
    mask_downsample: MaskDownsample = None,
    features: Embeddings = None,
    nuclei: NucleiPath = None,
    mpp: Mpp = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="Slide to write a case report of (HTML and PDF); may be repeated."),
    ] = None,
    cases: Annotated[
        Literal["none", "all"], typer.Option(help="Case reports of no slide or of all slides.")
    ] = "none",
    bootstrap: Annotated[
        int, typer.Option(help="Rounds of the confidence intervals, by patient; 0 for none.")
    ] = 1000,
    coverage: Annotated[
        float, typer.Option(help="Share of slides whose label prediction sets promise to hold.")
    ] = 0.9,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap and random attention.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write a run into one page that opens anywhere, and slides into case reports."""
    if not 0 < coverage < 1:
        raise SettingsError(f"Expected --coverage between 0 and 1, but got {coverage:g}.")
    if bootstrap < 0:
        raise SettingsError(f"Expected --bootstrap of at least 0, but got {bootstrap}.")
    from sgpmil.report.pages.case_report import CaseReports
    from sgpmil.report.pages.number_texts import counted
    from sgpmil.report.pages.rendering import refuse_existing
    from sgpmil.report.pages.run_report import ReportOptions, run_report, write_run_report
    from sgpmil.runs.material import read_material

    page = out or _beside(run)
    refuse_existing(page, overwrite=overwrite)
    material = read_material(
        run,
        features=features,
        slides=slides,
        annotations=annotation_folder(annotations, regions, mask_downsample),
        min_coverage=min_coverage,
        nuclei=nuclei,
        mpp=mpp,
    )
    command = _command(
        run,
        out=out,
        slides=slides,
        annotations=annotations,
        regions=regions,
        min_coverage=min_coverage if min_coverage != 0.5 else None,
        mask_downsample=mask_downsample,
        features=features,
        nuclei=nuclei,
        mpp=mpp,
        bootstrap=bootstrap if bootstrap != 1000 else None,
        coverage=coverage if coverage != 0.9 else None,
        seed=seed or None,
    )
    folder = page.parent / "cases"
    reports = CaseReports(material, coverage) if case or cases == "all" else None
    wanted = _wanted(reports, folder, case or (), cases, overwrite)
    with Console(stderr=True).status("Drawing the run …"):
        found = run_report(
            material,
            ReportOptions(
                rounds=bootstrap,
                coverage=coverage,
                min_coverage=min_coverage,
                seed=seed,
                cases=frozenset(wanted),
                command=command,
            ),
        )
    write_run_report(page, found, overwrite=overwrite)
    if reports is not None:
        _write_cases(reports, wanted, folder, overwrite)
    size = page.stat().st_size / 1e6
    console.print(f"Written: {page} ({size:.1f} MB)")
    if wanted:
        console.print(f"Case reports of {counted(len(wanted), 'slide')}, HTML and PDF: {folder}")
    if found.num_warnings:
        several = found.num_warnings > 1
        warnings = "are warnings: look at them" if several else "is a warning: look at it"
        console.print(f"{found.num_warnings} of its checks {warnings} first.")


def _beside(run: Path) -> Path:
    return run / "report.html" if run.is_dir() else run.with_name(f"{run.stem}-report.html")


def _wanted(
    reports: "CaseReports | None",
    folder: Path,
    named: Sequence[str],
    cases: str,
    overwrite: bool,
) -> list[str]:
    """Find out what cannot be written before anything is drawn."""
    if reports is None:
        return []
    from sgpmil.report.pages.case_page import case_paths
    from sgpmil.report.pages.rendering import refuse_existing

    wanted = list(reports.slide_ids) if cases == "all" else list(dict.fromkeys(named))
    for slide_id in named:
        reports.check(slide_id)
    taken: dict[Path, str] = {}
    for slide_id in wanted:
        for path in case_paths(folder, slide_id):
            refuse_existing(path, overwrite=overwrite)
            if path in taken:
                raise SettingsError(
                    f"Expected slides whose names make different files, but '{taken[path]}' and "
                    f"'{slide_id}' both make {path.name}. Report them one at a time (--case)."
                )
            taken[path] = slide_id
    return wanted


def _write_cases(
    reports: "CaseReports", wanted: Sequence[str], folder: Path, overwrite: bool
) -> None:
    from sgpmil.report.pages.case_page import write_case

    with counting("Case reports", len(wanted)) as bar:
        for slide_id in wanted:
            write_case(folder, reports.of(slide_id), overwrite=overwrite)
            bar.advance(bar.task_ids[0])


def _command(run: Path, **options: object) -> str:
    """Give the command that writes the same page again."""
    words = ["sgpmil", "report", str(run)]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, "--overwrite"])
