"""`sgpmil view`: a page to look through the slides of a run."""

from sgpmil.cli.commands import command
from sgpmil.cli.output import console
from sgpmil.viewer.server import ViewOptions
from sgpmil.viewer.server import view as serve


@command(
    ViewOptions,
    arguments=["run"],
    lists=["regions"],
    texts={
        "run": "A run, the folder of a fold, or of predictions (predict).",
        "slides": "Folder of the slide files; a run remembers it. Without it, patches lie on an "
        "empty canvas.",
        "features": "The embeddings, for prototypes and similar patches; by default where the run "
        "found them.",
    },
)
def view(options: ViewOptions) -> None:
    """Look through slides in a browser.

    The page needs no network. It lists the slides, the least certain first, and shows each with
    its maps, its patches and its prototypes. Verdicts and drawn regions are saved beside the run.

    Example: sgpmil view runs/latest --slides slides
    """
    console.print("Reading the run …")
    serve(options, lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True))
