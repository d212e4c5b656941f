"""Scores of the instances, at their places on the slide.

================  ==============================================================================
file              holds
================  ==============================================================================
placement         where the instances lie, and how large they are
scaling           scores on a scale that suits a picture
raster            scores become an image of the slide
================  ==============================================================================

All coordinates are level-0 pixels, x to the right and y down. Nothing is drawn here.
"""

from sgpmil.explanation.maps.placement import patch_side, placed_coords
from sgpmil.explanation.maps.raster import ScoreMap, score_map
from sgpmil.explanation.maps.scaling import ScaleKind, scaled

__all__ = ["ScaleKind", "ScoreMap", "patch_side", "placed_coords", "scaled", "score_map"]
