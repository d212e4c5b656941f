"""Links of a run's page to the case reports beside it.

The page marks the name of each slide with the address of its case report. The mark becomes a link
where that file exists. So a case report that is added later is linked, and nothing else of the page
changes.
"""

import re
from pathlib import Path
from urllib.parse import quote, unquote

from sgpmil.bags.files import file_name, read_text, write_text
from sgpmil.errors import RunFolderError

FOLDER = "cases"
"""Folder of the case reports, beside the page."""
_LISTED = 12
"""Most case reports that the head of the page names."""
_MOST_BYTES = 2**31
"""Size of the largest page: its images are in it."""
_MARK = re.compile(
    r'<span data-case="(?P<to>[^"]*)">(?:<a href="[^"]*">)?(?P<name>.*?)(?:</a>)?</span>'
)
_LIST = re.compile(r'<p class="cases"[^>]*>.*?</p>', re.DOTALL)


def case_address(slide_id: str) -> str:
    """Return the address of a slide's case report, relative to the page.

    Example:
        >>> case_address("slide 7")
        'cases/slide%207.html'
    """
    return quote(f"{FOLDER}/{file_name(slide_id)}.html")


def refresh_case_links(page: Path) -> None:
    """Link the slides of a page to the case reports that exist beside it.

    Args:
        page: The page; replaced whole where a link changes.

    Raises:
        RunFolderError: The page cannot be read or written.
    """
    try:
        html = read_text(page, most_bytes=_MOST_BYTES)
        linked = link_cases(html, page.parent)
        if linked != html:
            write_text(page, linked)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"Could not link the case reports in {page}: {error}.") from error


def link_cases(html: str, folder: Path) -> str:
    """Make links of the marks whose case report exists, and list them at the head.

    Args:
        html: The page.
        folder: Folder of the page.
    """
    links: dict[str, str] = {}
    missing: set[str] = set()

    def link(mark: re.Match[str]) -> str:
        to, name = mark["to"], mark["name"]
        if to not in links and to not in missing:
            if (folder / unquote(to)).exists():
                links[to] = f'<a href="{to}">{name}</a>'
            else:
                missing.add(to)
        return f'<span data-case="{to}">{links.get(to, name)}</span>'

    linked = _MARK.sub(link, html)
    shown = ", ".join(sorted(links.values())[:_LISTED])
    more = len(links) - _LISTED
    rest = f' and {more} more, in <a href="#all-slides">All slides</a>' if more > 0 else ""
    head = f'<p class="cases">Case reports: {shown}{rest}</p>' if links else ""
    return _LIST.sub(lambda _: head or '<p class="cases" hidden></p>', linked, count=1)
