"""Case reports as files: a page of HTML and a page of A4."""

from pathlib import Path

from sgpmil.report.pages.case_maps import case_map_figure, why_no_maps
from sgpmil.report.pages.case_pdf import write_case_pdf
from sgpmil.report.pages.case_report import CaseReport
from sgpmil.report.pages.images import photo_image, pixels_image
from sgpmil.report.pages.rendering import refuse_existing, write_page
from sgpmil.report.pages.shown_slides import case_name

__all__ = ["case_paths", "write_case"]


def case_paths(folder: Path, slide_id: str) -> tuple[Path, Path]:
    """Give the files of a slide's case report: HTML and PDF.

    Args:
        folder: Folder of the case reports.
        slide_id: Name of the slide.
    """
    name = case_name(slide_id)
    return folder / f"{name}.html", folder / f"{name}.pdf"


def write_case(folder: Path, case: CaseReport, *, overwrite: bool = False) -> tuple[Path, Path]:
    """Write a case report as HTML and PDF, each whole or not at all.

    Args:
        folder: Folder to write to; made where it is missing.
        case: What they say.
        overwrite: Replace files that are there.

    Returns:
        The files.

    Raises:
        RunFolderError: There is a file already, or it cannot be written.
    """
    html, pdf = case_paths(folder, case.slide_id)
    for path in (html, pdf):
        refuse_existing(path, overwrite=overwrite)
    missing = why_no_maps(case)
    maps = None
    if not missing:
        alt = f"Maps of {case.slide_id}: attention and evidence with their deviations."
        maps = photo_image(case_map_figure(case), alt, dpi=190)
    tiles = {
        patch.index: pixels_image(case.images[patch.index], f"Patch {patch.mark}")
        for group in case.patches
        for patch in group.patches
        if patch.index in case.images
    }
    content = {"case": case, "maps": maps, "no_maps": missing, "tiles": tiles}
    write_page(html, "case_report.html.j2", content, overwrite=overwrite)
    write_case_pdf(pdf, case, overwrite=overwrite)
    return html, pdf
