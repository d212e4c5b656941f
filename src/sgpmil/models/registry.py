"""Every model by name, with its settings and presets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sgpmil.errors import SettingsError
from sgpmil.models.abmil import ABMIL, ABMILSettings
from sgpmil.models.bayesmil import BayesMIL, BayesMILSettings
from sgpmil.models.clam import CLAM, CLAMSettings
from sgpmil.models.contract import MILModel
from sgpmil.models.dgrmil import DGRMIL, DGRMILSettings
from sgpmil.models.dsmil import DSMIL, DSMILSettings
from sgpmil.models.floors import BagSize, BagSizeSettings, MaxPool, MeanPool, PoolSettings
from sgpmil.models.kernel_attention import KernelAttention, KernelAttentionSettings
from sgpmil.models.mixmil import MixMIL, MixMILSettings
from sgpmil.models.setting_values import checked_value, unknown_name
from sgpmil.models.sgpmil import SGPMIL, SGPMILSettings
from sgpmil.models.transmil import TransMIL, TransMILSettings

__all__ = ["MODELS", "ModelEntry", "build_model", "list_models", "resolve_settings"]


@dataclass(frozen=True)
class ModelEntry:
    """A model of the registry.

    Args:
        build: Its class.
        default: The settings that are used unless others are given.
        presets: Other named settings.
    """

    build: Callable[[int, int, Any], MILModel]
    default: Any
    presets: Mapping[str, Any] = field(default_factory=dict)


_PAPER = SGPMILSettings(
    mean_scale=1.0,
    mean_bias=None,
    activation="sigmoid",
    sampling="independent",
    likelihood="mean_log_prob",
    inducing_start="uniform",
    lengthscale_start="log2",
    standardise=False,
)
_AGP = SGPMILSettings(
    mean="constant",
    mean_bias=0.0,
    activation="softmax",
    sampling="full",
    likelihood="log_mean_prob",
    jitter=1e-3,
)

MODELS: dict[str, ModelEntry] = {
    "sgpmil": ModelEntry(
        SGPMIL,
        SGPMILSettings(),
        {
            "paper": _PAPER,
            "released": replace(_PAPER, sampling="shared", likelihood="mean_logits"),
        },
    ),
    "agp": ModelEntry(
        SGPMIL,
        _AGP,
        {
            "released": replace(
                _AGP,
                likelihood="mean_logits",
                inducing_start="uniform",
                lengthscale_start="log2",
                standardise=False,
            )
        },
    ),
    "transmil": ModelEntry(
        TransMIL,
        TransMILSettings(),
        {"released": TransMILSettings(standardise=False, zero_padding=True, rollout="exact")},
    ),
    "dgrmil": ModelEntry(
        DGRMIL,
        DGRMILSettings(),
        {"released": DGRMILSettings(standardise=False, zero_padding=True, warmup_epochs=20)},
    ),
    "abmil": ModelEntry(ABMIL, ABMILSettings(), {"released": ABMILSettings(standardise=False)}),
    "clam-sb": ModelEntry(
        CLAM,
        CLAMSettings(),
        {"released": CLAMSettings(instances_per_side=32, standardise=False)},
    ),
    "clam-mb": ModelEntry(
        CLAM,
        CLAMSettings(branches="per_class"),
        {"released": CLAMSettings(branches="per_class", instances_per_side=32, standardise=False)},
    ),
    "dsmil": ModelEntry(
        DSMIL,
        DSMILSettings(),
        {"released": DSMILSettings(likelihood="sigmoid", standardise=False)},
    ),
    "kernel-attention": ModelEntry(
        KernelAttention,
        KernelAttentionSettings(),
        {"released": KernelAttentionSettings(scale_start="one", standardise=False)},
    ),
    "bayesmil": ModelEntry(
        BayesMIL,
        BayesMILSettings(),
        {
            "vis": BayesMILSettings(spatial=False, data_penalty=0.0),
            "enc": BayesMILSettings(spatial=False),
            "released": BayesMILSettings(data_penalty=1e-12, standardise=False),
        },
    ),
    "mixmil": ModelEntry(MixMIL, MixMILSettings()),
    "mean-pool": ModelEntry(MeanPool, PoolSettings()),
    "max-pool": ModelEntry(MaxPool, PoolSettings()),
    "bag-size": ModelEntry(BagSize, BagSizeSettings()),
}


def list_models() -> list[str]:
    """Return the names of all models.

    Example:
        >>> "sgpmil" in list_models()
        True
    """
    return sorted(MODELS)


def resolve_settings(name: str, settings: Mapping[str, Any]) -> Any:
    """Return a model's settings with some replaced.

    Args:
        name: A name of `list_models`.
        settings: Values by field, and optionally ``preset``, from which the others start.

    Raises:
        SettingsError: The model, preset or a setting does not exist, or a value is impossible.
    """
    if name not in MODELS:
        raise SettingsError(unknown_name("model", name, list_models()))
    entry = MODELS[name]
    # JSON and YAML have no tuples.
    values: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
    }
    preset = values.pop("preset", None)
    start = entry.default
    if preset not in (None, "default"):
        if preset not in entry.presets:
            choices = ["default", *entry.presets]
            raise SettingsError(unknown_name(f"preset of {name}", str(preset), choices))
        start = entry.presets[preset]
    known = {f.name: "None" in str(f.type) for f in fields(start)}
    for key, value in values.items():
        if key not in known:
            raise SettingsError(unknown_name(f"setting of {name}", key, list(known)))
        if key != "kernel" and (value is not None or not known[key]):  # a kernel may be an object
            values[key] = checked_value(key, value, getattr(start, key))
    return replace(start, **values)


def build_model(name: str, *, in_dim: int, num_classes: int, **settings: Any) -> MILModel:
    """Build a model by name.

    Args:
        name: A name of `list_models`.
        in_dim: Number of features of an instance.
        num_classes: Number of classes.
        settings: Values of the model's settings that differ from its defaults; ``preset``
            names other defaults (``paper`` or ``released`` for SGPMIL).

    Raises:
        SettingsError: The model or a setting does not exist, or a value is impossible.

    Example:
        >>> build_model("sgpmil", in_dim=1024, num_classes=2).num_parameters()
        1209686
    """
    resolved = resolve_settings(name, settings)
    if in_dim < 1 or num_classes < 2:
        raise SettingsError(
            f"Expected in_dim >= 1 and num_classes >= 2, but got {in_dim} and {num_classes}."
        )
    model = MODELS[name].build(in_dim, num_classes, resolved)
    model.name = name
    return model
