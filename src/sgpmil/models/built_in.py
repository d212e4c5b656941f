"""Names of the models of this package, and the module that registers each.

The command line names the models in its help and must not import torch for that.
"""

__all__ = ["BUILT_IN"]

BUILT_IN = {
    "sgpmil": "sgpmil.models.sgpmil",
    "agp": "sgpmil.models.sgpmil",
    "abmil": "sgpmil.models.abmil",
    "clam-sb": "sgpmil.models.clam",
    "clam-mb": "sgpmil.models.clam",
    "dsmil": "sgpmil.models.dsmil",
    "transmil": "sgpmil.models.transmil",
    "dgrmil": "sgpmil.models.dgrmil",
    "bayesmil": "sgpmil.models.bayesmil",
    "mixmil": "sgpmil.models.mixmil",
    "kernel-attention": "sgpmil.models.kernel_attention",
    "mean-pool": "sgpmil.models.floors",
    "max-pool": "sgpmil.models.floors",
    "bag-size": "sgpmil.models.floors",
}
"""The module of each model, imported when the model is first used."""
