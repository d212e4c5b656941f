"""Turn formulas into MathML when the site is built, so that pages need no script and no network."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">(?P<open>\\[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas of a page."""

    def formula(match: re.Match[str]) -> str:
        is_block = match["open"] == "\\["
        tex = html.unescape(match["tex"]).strip()
        formula = str(convert(tex, display="block" if is_block else "inline"))
        return f'<div class="formula">{formula}</div>' if is_block else formula

    return _FORMULA.sub(formula, content)
