"""Models that classify bags: one contract, one file a model.

- `contract`: `MILModel`, `ModelOutput`, `Loss`; what a GPU may record of a model
- `registry`: models by name, with their settings, presets and training
- `checkpoint`: models on disk, as safetensors and JSON
- `sgpmil` (and AGP), `abmil`, `clam`, `dsmil`, `transmil`, `dgrmil`, `bayesmil`, `mixmil`,
  `kernel_attention`, `baselines`: the models
- `sgpmil_settings`, `process_inputs`, `inducing_patches`: parts of SGPMIL
- `released`: checkpoints of the authors' released code
- `embedding`, `pooling`, `likelihood`: layers and losses that models share
- `prevalence`: class shares of training and of the slides that are predicted
- `nystrom` (TransMIL, DGR-MIL), `patch_grid` (BayesMIL), `mixed_effects` (MixMIL): parts of models
- `precision`: number formats of dense layers
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.models.checkpoint import CheckpointInfo, load_model, save_model
    from sgpmil.models.contract import Loss, MILModel, ModelOutput, ModelSettings, Recordable
    from sgpmil.models.embedding import relu_layers
    from sgpmil.models.pooling import bag_softmax, pool
    from sgpmil.models.registry import build_model, list_models, register, resolve_settings
    from sgpmil.models.released import import_released, read_released_checkpoint
    from sgpmil.models.sgpmil import SGPMIL
    from sgpmil.models.sgpmil_settings import SGPMILSettings
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "checkpoint": "CheckpointInfo load_model save_model",
            "contract": "Loss MILModel ModelOutput ModelSettings Recordable",
            "embedding": "relu_layers",
            "pooling": "bag_softmax pool",
            "registry": "build_model list_models register resolve_settings",
            "released": "import_released read_released_checkpoint",
            "sgpmil": "SGPMIL",
            "sgpmil_settings": "SGPMILSettings",
        },
    )

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
    "mean-pool": "sgpmil.models.baselines",
    "max-pool": "sgpmil.models.baselines",
    "bag-size": "sgpmil.models.baselines",
}
"""Module that registers each model of this package, imported when the model is first used.

The command line lists the names in its help, and must not import torch for that.
"""

__all__ = [
    "BUILT_IN",
    "SGPMIL",
    "CheckpointInfo",
    "Loss",
    "MILModel",
    "ModelOutput",
    "ModelSettings",
    "Recordable",
    "SGPMILSettings",
    "bag_softmax",
    "build_model",
    "import_released",
    "list_models",
    "load_model",
    "pool",
    "read_released_checkpoint",
    "register",
    "relu_layers",
    "resolve_settings",
    "save_model",
]
