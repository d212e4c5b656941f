"""Colours and sizes that the figures share; new figures and saved ones."""

import os
import re

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from sgpmil.bags.files import atomic_path

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Colours that the colour-blind can tell apart (Okabe and Ito, 2008; the last by Tol)."""

GREY = "#6b6b6b"
TITLE_SIZE, LABEL_SIZE, SMALL_SIZE = 11, 10, 8.5


def plain_words(text: str) -> str:
    r"""Keep matplotlib from taking dollar signs in names for formulas.

    Example:
        >>> print(plain_words("a$b$"), plain_words(plain_words("a$b$")))
        a\$b\$ a\$b\$
    """
    return re.sub(r"(?<!\\)\$", r"\\$", text)


def new_figure(width: float, height: float, pad: float = 0.04) -> Figure:
    """Make an empty figure that no global state of matplotlib knows of."""
    layout = ConstrainedLayoutEngine(w_pad=pad, h_pad=pad)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, *, title: str = "", x_label: str = "", y_label: str = "") -> None:
    """Give axes their words and the common look."""
    axes.set_title(title, fontsize=TITLE_SIZE, loc="left")
    axes.set_xlabel(x_label, fontsize=LABEL_SIZE)
    axes.set_ylabel(y_label, fontsize=LABEL_SIZE)
    axes.tick_params(labelsize=SMALL_SIZE, color=GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 160) -> None:
    """Save a figure as PNG; the file appears whole or not at all."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi)
