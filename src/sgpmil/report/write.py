"""Reports of a run: one page of the run, and case reports of slides.

The command ``sgpmil report`` calls `write_report`.
"""

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from sgpmil.errors import SettingsError
from sgpmil.processes import progress_bar
from sgpmil.report.pages.case_page import case_paths, write_case
from sgpmil.report.pages.case_report import CaseReports
from sgpmil.report.pages.rendering import refuse_existing
from sgpmil.report.pages.run_report import ReportOptions, RunReport, run_report, write_run_report
from sgpmil.runs.material import MaterialOptions

__all__ = ["WriteReportOptions", "WrittenReport", "write_report"]


@dataclass(frozen=True, kw_only=True)
class WriteReportOptions(MaterialOptions):
    """Options of `write_report`.

    Args:
        out: Page to write; RUN/report.html by default.
        case: Slide to write a case report of (HTML and PDF); may be repeated.
        cases: Case reports of no slide or of all slides.
        bootstrap: Rounds of the confidence intervals, by patient; 0 for none.
        coverage: Share of slides whose prediction sets should contain the label.
        seed: Seed of the bootstrap and of random attention.
        overwrite: Replace an existing report.
    """

    out: Path | None = None
    case: tuple[str, ...] = ()
    cases: Literal["none", "all"] = "none"
    bootstrap: int = 1000
    coverage: float = 0.9
    seed: int = 0
    overwrite: bool = False

    @property
    def page(self) -> Path:
        """The page to write."""
        if self.out is not None:
            return self.out
        is_folder = self.run.is_dir()
        name = "report.html" if is_folder else f"{self.run.stem}-report.html"
        return (self.run if is_folder else self.run.parent) / name

    @property
    def command(self) -> str:
        """The command that writes the same page again."""
        words = ["sgpmil", "report", str(self.run)]
        for name in _REPEATED:
            value, default = getattr(self, name), _DEFAULTS[name]
            if value != default:
                text = ",".join(value) if isinstance(value, tuple) else str(value)
                words += [f"--{name.replace('_', '-')}", text]
        return shlex.join([*words, "--overwrite"])


_DEFAULTS = {field.name: field.default for field in fields(WriteReportOptions)}
_REPEATED = (
    *("out", "slides", "annotations", "regions", "min_coverage", "mask_downsample"),
    *("features", "nuclei", "mpp", "bootstrap", "coverage", "seed"),
)
"""Options that decide the content of the page."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenReport:
    """Files that `write_report` wrote.

    Args:
        page: The page of the run.
        report: Content of the page.
        cases: Slides that have a case report.
        case_folder: Folder of the case reports.
    """

    page: Path
    report: RunReport
    cases: tuple[str, ...]
    case_folder: Path


def write_report(options: WriteReportOptions, *, show_progress: bool = False) -> WrittenReport:
    """Write a run into one HTML page, and slides into case reports.

    Args:
        options: The run, its slides, and what to write.
        show_progress: Whether to show a bar on standard error.

    Raises:
        SettingsError: An option is out of range, or two slides would have the same file.
        SgpmilError: The run cannot be read, or the page exists.
    """
    if not 0 < options.coverage < 1:
        raise SettingsError(f"Expected --coverage between 0 and 1, but got {options.coverage:g}.")
    if options.bootstrap < 0:
        raise SettingsError(f"Expected --bootstrap of at least 0, but got {options.bootstrap}.")
    page, folder = options.page, options.page.parent / "cases"
    refuse_existing(page, overwrite=options.overwrite)
    material = options.read_material()
    has_cases = bool(options.case) or options.cases == "all"
    reports = CaseReports(material, options.coverage) if has_cases else None
    # Before anything is drawn: a file that cannot be written stops it.
    wanted = () if reports is None else _wanted(reports, folder, options)
    with progress_bar("Drawing the run", 1, "pages", show=show_progress) as bar:
        found = run_report(
            material,
            ReportOptions(
                rounds=options.bootstrap,
                coverage=options.coverage,
                min_coverage=options.min_coverage,
                seed=options.seed,
                cases=frozenset(wanted),
                command=options.command,
            ),
        )
        write_run_report(page, found, overwrite=options.overwrite)
        if reports is not None:
            bar.begin("Case reports", len(wanted))
            for slide_id in wanted:
                write_case(folder, reports.of(slide_id), overwrite=options.overwrite)
                bar.advance()
    return WrittenReport(page, found, wanted, folder)


def _wanted(reports: CaseReports, folder: Path, options: WriteReportOptions) -> tuple[str, ...]:
    named = tuple(dict.fromkeys(options.case))
    for slide_id in named:
        reports.check(slide_id)
    wanted = tuple(reports.slide_ids) if options.cases == "all" else named
    taken: dict[Path, str] = {}
    for slide_id in wanted:
        for path in case_paths(folder, slide_id):
            refuse_existing(path, overwrite=options.overwrite)
            if path in taken:
                raise SettingsError(
                    f"Expected slides whose names make different files, but '{taken[path]}' and "
                    f"'{slide_id}' both make {path.name}. Report them one at a time (--case)."
                )
            taken[path] = slide_id
    return wanted
