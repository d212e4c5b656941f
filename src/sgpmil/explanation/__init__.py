"""Explanations of predictions, as data: maps, key patches, prototypes, exports. Nothing is drawn.

::

    explanation = explain(ExplainOptions(run="runs/colon", most=20))
    for slide in explanation:               # one at a time, the least certain first
        slide.layers                        # scores of the patches with their deviations
        slide.map("evidence")               # as an image of the slide
        slide.key_patches                   # patches to look at
        slide.prototypes                    # inducing point of each patch
        slide.export("geojson", path)       # for QuPath; also csv, parquet, tiff, tiatoolbox
    explanation.prototypes("0")             # of a fold: patches, examples, effect of each
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.explanation.run_explanation import ExplainOptions, Explanation, explain
    from sgpmil.explanation.slide_explanation import SlideExplanation
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "run_explanation": "ExplainOptions Explanation explain",
            "slide_explanation": "SlideExplanation",
        },
    )

__all__ = ["ExplainOptions", "Explanation", "SlideExplanation", "explain"]
