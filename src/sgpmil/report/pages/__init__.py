"""Pages of HTML and paper: a run on one page, and a slide on another.

================  ==============================================================================
file              holds
================  ==============================================================================
run_report        a run becomes one page that carries everything within itself
checks            what is looked at before the numbers are trusted; `run_facts` of the data
summary           the run in a paragraph, its key numbers and its data
performance       folds, curves, errors and calibration; `uncertainty`, `localisation`,
                  `prototypes` likewise
shown_slides      slides with their maps; `slide_choice` says which
provenance        settings, environment, and the commands that make it again
case_report       what is said of one slide; `case_patches` the patches, `wording` how sure,
                  `prediction_sets` the classes it may be of
case_page         a case report as files; `case_pdf` on A4, `case_maps` its maps
blocks            what a page is made of
images            pictures that a page carries within itself
number_texts      how numbers are written
finite_scores     scores of patches that are not finite, counted and left out
rendering         templates filled and written
typesetting       words measured and set on paper
================  ==============================================================================
"""

from sgpmil.report.pages.case_page import case_paths, write_case
from sgpmil.report.pages.case_report import CaseReport, CaseReports
from sgpmil.report.pages.run_report import ReportOptions, RunReport, run_report, write_run_report

__all__ = [
    "CaseReport",
    "CaseReports",
    "ReportOptions",
    "RunReport",
    "case_paths",
    "run_report",
    "write_case",
    "write_run_report",
]
