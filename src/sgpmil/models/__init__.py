"""One file a model, one contract for all of them.

- `contract`: `MILModel`, `ModelOutput`, `Loss`
- `registry`: `build_model`, `list_models`
- `checkpoint`: models on disk, as safetensors and JSON
- `sgpmil` (and AGP), `abmil`, `clam`, `dsmil`, `transmil`, `dgrmil`, `bayesmil`, `mixmil`,
  `kernel_attention`, `floors`: the models
- `released`: checkpoints of the authors' released code
- `embedding`, `encoder`, `pooling`, `likelihood`, `nystrom`, `attention_matrix`,
  `variational_dropout`, `patch_grid`, `mixed_effects`: the parts models share
- `precision`: in which arithmetic dense layers are computed
- `pooling_kernels`, `relu_kernels` and their `programs`: what a GPU computes in place of torch
"""

from sgpmil.models.checkpoint import CheckpointInfo, load_model, save_model
from sgpmil.models.contract import Loss, MILModel, ModelOutput
from sgpmil.models.registry import build_model, list_models, resolve_settings
from sgpmil.models.released import import_released, read_released_checkpoint
from sgpmil.models.sgpmil import SGPMIL, SGPMILSettings

__all__ = [
    "SGPMIL",
    "CheckpointInfo",
    "Loss",
    "MILModel",
    "ModelOutput",
    "SGPMILSettings",
    "build_model",
    "import_released",
    "list_models",
    "load_model",
    "read_released_checkpoint",
    "resolve_settings",
    "save_model",
]
