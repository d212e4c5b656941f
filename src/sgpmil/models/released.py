"""Checkpoints of the authors' released code.

Their state dict holds the Gaussian process twice (`sgp.*` and `f_gp.2.*`) and each kernel
parameter up to three times; all copies are the same tensors. Lightning's files prefix every name
with `model.`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, strided

from sgpmil.bags.readers.torch_files import load_torch
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import CheckpointError, RunFolderError, SettingsError, damage_as
from sgpmil.models.checkpoint import save_model
from sgpmil.models.registry import build_model
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.options import Options

_GP = "f_gp.2."
_NAMES = {
    "f_gp.0.weight": "projection.weight",
    "f_gp.0.bias": "projection.bias",
    "cl.weight": "classifier.weight",
    "cl.bias": "classifier.bias",
    _GP + "variational_strategy.inducing_points": "gp.inducing_points",
    _GP + "variational_strategy._variational_distribution.variational_mean": (
        "gp.variational.variational_mean"
    ),
    _GP + "variational_strategy._variational_distribution.chol_variational_covar": (
        "gp.variational.chol_variational_covar"
    ),
    _GP + "mean_module.weights": "gp.mean.weights",
    _GP + "mean_module.bias": "gp.mean.bias",
    _GP + "cov_module.kernels.0.raw_outputscale": "gp.kernel.kernels.0.raw_outputscale",
    _GP + "cov_module.kernels.0.base_kernel.raw_lengthscale": (
        "gp.kernel.kernels.0.base_kernel.raw_lengthscale"
    ),
    _GP + "cov_module.kernels.1.raw_constant": "gp.kernel.kernels.1.raw_constant",
}


def import_released(state_dict: Mapping[str, Tensor], *, jitter: float = 1e-4) -> SGPMIL:
    """Build the SGPMIL that a state dict of the released code describes.

    The model has the ``released`` preset, the state's layer sizes and dtype, and is in evaluation
    mode.

    Args:
        state_dict: Its tensors by name, with or without Lightning's prefix ``model.``.
        jitter: The jitter it was trained with; the state does not hold it.

    Raises:
        CheckpointError: A tensor is missing or has an unexpected shape.
    """
    state = {name.removeprefix("model."): tensor for name, tensor in state_dict.items()}
    layers = sorted(
        (int(name.split(".")[1]) for name in state if _is_mlp(name) and name.endswith("weight")),
    )
    names = dict(_NAMES)
    for position, layer in enumerate(layers):
        for part in ("weight", "bias"):
            names[f"mlp.{layer}.{part}"] = f"mlp.{2 * position}.{part}"
    missing = [name for name in names if name not in state]
    if missing or not layers:
        raise CheckpointError(
            "Expected a checkpoint of the released SGPMIL, but it lacks "
            f"{', '.join(missing[:3]) or 'the layers mlp.*'}"
            f"{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}."
        )
    widths = [state[f"mlp.{layer}.weight"].shape[0] for layer in layers]
    num_inducing, gp_dim = state[_GP + "variational_strategy.inducing_points"].shape[-2:]
    model = build_model(
        "sgpmil",
        in_dim=state[f"mlp.{layers[0]}.weight"].shape[1],
        target=ClassTarget.numbered(len(state["cl.bias"])),
        preset="released",
        hidden_dims=tuple(widths),
        gp_dim=gp_dim,
        num_inducing=num_inducing,
        jitter=jitter,
    ).to(state["cl.weight"].dtype)
    own = model.state_dict()
    for name, ours in names.items():
        # GPyTorch's versions differ in axes of length 1, and in nothing else.
        if state[name].squeeze().shape != own[ours].squeeze().shape:
            raise CheckpointError(
                f"Expected {name} of the released checkpoint to have shape "
                f"{tuple(own[ours].shape)}, but got {tuple(state[name].shape)}."
            )
        own[ours] = state[name].reshape(own[ours].shape)
    model.load_state_dict(own)
    if not isinstance(model, SGPMIL):
        raise CheckpointError("The registry's 'sgpmil' is not an SGPMIL.")
    return model.eval()


def read_released_checkpoint(path: Path | str, *, jitter: float | None = None) -> SGPMIL:
    """Read a ``.ckpt`` or ``.pt`` of the released code without running anything in it.

    Args:
        path: A Lightning checkpoint, or a saved state dict.
        jitter: The jitter it was trained with; 1e-4, the released configuration's, by default.

    Raises:
        CheckpointError: The file is missing, damaged, or holds more than tensors.
    """
    try:
        content: Any = load_torch(Path(path), CheckpointError)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"Expected a checkpoint of the released code in {path}, but could not read it "
            f"without running code from it: {first}"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, Mapping) else {}
    state = state if isinstance(state, Mapping) else {}
    advice = "Give a checkpoint that the released code wrote."
    with damage_as(CheckpointError, "the weights of the released SGPMIL", path, advice):
        for name, value in state.items():
            if isinstance(value, Tensor) and not _has_own_numbers(value):
                raise ValueError(f"{name} of {tuple(value.shape)}, which are not all stored")
        return import_released(state, jitter=1e-4 if jitter is None else jitter)


def _has_own_numbers(value: Tensor) -> bool:
    """Return whether a tensor is stored whole: one number can claim to be a huge matrix."""
    is_plain = value.layout == strided and not (value.is_meta or value.is_quantized)
    return is_plain and value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _is_mlp(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 3 and parts[0] == "mlp" and parts[1].isdigit()


@dataclass(frozen=True, kw_only=True)
class ReleasedOptions(Options):
    """Options of `convert_released`.

    Args:
        checkpoint: A .ckpt or .pt of the released code.
        out: Checkpoint (.safetensors) to write.
        classes: Class names in the order of the model, comma-separated.
        jitter: Jitter that the model was trained with.
        overwrite: Replace an existing checkpoint.
    """

    checkpoint: Path
    out: Path
    classes: tuple[str, ...] | None = None
    jitter: float = 1e-4
    overwrite: bool = False


def convert_released(options: ReleasedOptions) -> SGPMIL:
    """Convert a checkpoint of the released code into one of this package.

    Raises:
        CheckpointError: The file is missing, damaged, or holds more than tensors.
        RunFolderError: The checkpoint to write exists.
        SettingsError: The number of class names is not the model's.
    """
    if options.out.exists() and not options.overwrite:
        raise RunFolderError(f"{options.out} exists already. Replace it with `overwrite=True`.")
    model = read_released_checkpoint(options.checkpoint, jitter=options.jitter)
    if options.classes:
        if len(options.classes) != model.num_outputs:
            raise SettingsError(
                f"Expected {model.num_outputs} class names, as the model has, but got "
                f"{len(options.classes)}."
            )
        model.target = ClassTarget(tuple(options.classes))
    save_model(model, options.out, details={"imported_from": options.checkpoint.name})
    return model
