"""Inducing points as prototypes: the patches that each stands for, and its effect.

================  ==============================================================================
file              holds
================  ==============================================================================
explanation       prototypes of a set of slides, found slide by slide
summary           prototypes as data: counts, examples, colours; written to files and read again
similarity        similarity of patches to inducing points; parts of the attention logit
examples          the patches that are most like each prototype
origins           training patches that inducing points are, and what the model says of each alone
nuclei            nuclei found by HoVer-Net or CellViT, and their types in each patch
================  ==============================================================================
"""

from sgpmil.explanation.prototypes.explanation import explain_prototypes
from sgpmil.explanation.prototypes.nuclei import Nuclei, nuclei_in_patches, read_nuclei
from sgpmil.explanation.prototypes.similarity import (
    MEASURES,
    SimilarityMeasure,
    SlidePrototypes,
    attention_parts,
    mean_inputs,
)
from sgpmil.explanation.prototypes.summary import (
    NEUTRAL,
    PALETTE,
    PatchReference,
    PrototypeExplanation,
    PrototypeSummary,
    read_prototypes,
    write_prototype_table,
    write_prototypes,
)

__all__ = [
    "MEASURES",
    "NEUTRAL",
    "PALETTE",
    "Nuclei",
    "PatchReference",
    "PrototypeExplanation",
    "PrototypeSummary",
    "SimilarityMeasure",
    "SlidePrototypes",
    "attention_parts",
    "explain_prototypes",
    "mean_inputs",
    "nuclei_in_patches",
    "read_nuclei",
    "read_prototypes",
    "write_prototype_table",
    "write_prototypes",
]
