"""Figures and pages: drawings of what explanation and evaluation compute.

::

    write_explanation(ExplainOptions(run="runs/colon", most=20))    # maps, patches, prototypes
    write_report(ReportOptions(run="runs/colon", cases="all"))      # report.html, case reports
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.report.explanation_files import WrittenExplanation, write_explanation
    from sgpmil.report.pages.run_report import ReportOptions
    from sgpmil.report.report_files import WrittenReport, write_report
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "explanation_files": "WrittenExplanation write_explanation",
            "pages.run_report": "ReportOptions",
            "report_files": "WrittenReport write_report",
        },
    )

__all__ = [
    "ReportOptions",
    "WrittenExplanation",
    "WrittenReport",
    "write_explanation",
    "write_report",
]
