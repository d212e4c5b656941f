"""Inducing points as prototypes: which patches are like which, and what each does.

================  ==============================================================================
file              holds
================  ==============================================================================
explanation       a model and bags become prototypes: the whole, slide by slide
similarity        how like an inducing point a patch is, and the one it is most like
effect            what each inducing point adds to the attention
use               patches, slides and labels counted a prototype
examples          the patches that are most like a prototype, spread over slides
colours           a colour for each of the most used prototypes
nuclei            nuclei found by HoVer-Net or CellViT, and their types in each patch
agreement         how well prototypes agree with what is known of the tissue
raster            prototypes of the patches as an image of the slide
tables            prototypes as a table
================  ==============================================================================
"""

from sgpmil.explanation.prototypes.agreement import normalised_mutual_information, tissue_classes
from sgpmil.explanation.prototypes.colours import NEUTRAL, PALETTE, prototype_colours
from sgpmil.explanation.prototypes.effect import AttentionParts, attention_parts
from sgpmil.explanation.prototypes.examples import PatchReference
from sgpmil.explanation.prototypes.explanation import (
    PrototypeExplanation,
    PrototypeSummary,
    explain_prototypes,
)
from sgpmil.explanation.prototypes.nuclei import Nuclei, nuclei_in_patches, read_nuclei
from sgpmil.explanation.prototypes.raster import LabelMap, label_map
from sgpmil.explanation.prototypes.similarity import (
    MEASURES,
    SimilarityMeasure,
    SlidePrototypes,
    mean_inputs,
)
from sgpmil.explanation.prototypes.tables import write_prototype_table

__all__ = [
    "MEASURES",
    "NEUTRAL",
    "PALETTE",
    "AttentionParts",
    "LabelMap",
    "Nuclei",
    "PatchReference",
    "PrototypeExplanation",
    "PrototypeSummary",
    "SimilarityMeasure",
    "SlidePrototypes",
    "attention_parts",
    "explain_prototypes",
    "label_map",
    "mean_inputs",
    "normalised_mutual_information",
    "nuclei_in_patches",
    "prototype_colours",
    "read_nuclei",
    "tissue_classes",
    "write_prototype_table",
]
