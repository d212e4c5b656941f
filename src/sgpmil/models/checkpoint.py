"""Models on disk: weights as safetensors, everything else as JSON.

Nothing is pickled, so a checkpoint from elsewhere cannot run code. Both files are written under a
temporary name and renamed, the JSON last: a checkpoint with its JSON is complete.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from sgpmil.bags.feature_origin import FeatureOrigin
from sgpmil.bags.files import atomic_path, read_json, regular_file, write_text
from sgpmil.bags.target import ClassTarget, Target, read_target
from sgpmil.errors import CheckpointError, SettingsError, SgpmilError, damage_as, reason_of
from sgpmil.models.contract import MILModel
from sgpmil.models.prevalence import ClassShares
from sgpmil.models.registry import ModelLike, build_model, find_model

_MOST_FEATURES = 2**20
_MOST_TIMES, _FREE_NUMBERS = 2, 2**20
"""How much larger than its weights a model may claim to be, before it is built."""
FORMAT_VERSION = 3
"""Version 3 has class shares. Without them a model predicts for the shares that training drew."""

_CUSTOM_KERNEL = "custom:"
_ORIGIN = "features"


@dataclass(frozen=True)
class CheckpointInfo:
    """Description of a checkpoint: all but its weights.

    Args:
        model: Name of the model in the registry, or where its class is defined.
        in_dim: Number of features of an instance.
        target: Quantity that the model predicts.
        settings: The model's settings.
        details: Other facts (encoder, epoch, data fingerprint).
        shares: Class shares of training and of the slides that are predicted.
    """

    model: str
    in_dim: int
    target: Target
    settings: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict)
    shares: ClassShares | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each output, in the order of the logits."""
        return self.target.names

    @property
    def origin(self) -> FeatureOrigin:
        """Encoder, magnification and patch side of the training bags, where they were stated."""
        return FeatureOrigin.from_json(self.details.get(_ORIGIN))

    @staticmethod
    def of(
        model: MILModel, details: Mapping[str, Any] | None = None, target: Target | None = None
    ) -> "CheckpointInfo":
        """Describe a model; `target` replaces its own."""
        settings = asdict(model.settings)
        if "kernel" in settings and not isinstance(settings["kernel"], str):
            settings["kernel"] = _CUSTOM_KERNEL + type(settings["kernel"]).__qualname__
        return CheckpointInfo(
            model=model.name or find_model(model).name,
            in_dim=model.in_dim,
            target=target or model.target,
            settings=settings,
            details={
                **({_ORIGIN: model.origin.to_json()} if model.origin else {}),
                **dict(details or {}),
            },
            shares=model.shares,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the description as a checkpoint stores it."""
        return {
            "model": self.model,
            "in_dim": self.in_dim,
            "target": self.target.to_json(),
            "settings": dict(self.settings),
            "details": dict(self.details),
            "shares": None if self.shares is None else self.shares.to_json(),
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "CheckpointInfo":
        """Read what `to_json` gave.

        Raises:
            ValueError: Part of it is missing or of the wrong kind; likewise KeyError, TypeError
                and AttributeError.
        """
        values = dict(content)
        for name, kind in (("settings", dict), ("details", dict), ("model", str), ("in_dim", int)):
            if not isinstance(values.get(name, kind()), kind):
                raise TypeError(f"{name} is no {kind.__name__}")
        values["target"] = read_target(values)
        values.pop("class_names", None)  # of the first version
        shares = values["shares"] = ClassShares.from_json(values.get("shares"))
        if shares is not None and len(shares.training) != values["target"].num_outputs:
            raise ValueError("its class shares are not of its classes")
        return CheckpointInfo(**values)

    def build(
        self,
        state: Mapping[str, Tensor],
        place: Path | str,
        *,
        model: ModelLike | None = None,
        **settings: Any,
    ) -> MILModel:
        """Build the model with its weights, in evaluation mode.

        Args:
            state: The weights by name.
            place: Their file, for messages.
            model: See `load_model`.
            settings: See `load_model`.

        Raises:
            CheckpointError: The model is unknown, or the weights do not fit it.
            SettingsError: A setting to replace does not exist or is impossible.
        """
        if model is None:
            model = _registered(self.model, place)
        values = settings if isinstance(model, MILModel) else {**self.settings, **settings}
        if str(values.get("kernel", "")).startswith(_CUSTOM_KERNEL):
            raise CheckpointError(
                f"{place} was trained with a kernel of your own ({values['kernel']}): "
                "pass it again, load_model(path, kernel=...)."
            )
        advice = "Restore the checkpoint, or train again."
        with damage_as(CheckpointError, f"settings of a {self.model}", place, advice):
            try:
                self._refuse_giant(state, model, values, place)
                network = build_model(model, in_dim=self.in_dim, target=self.target, **values)
            except SettingsError as error:
                if settings:  # those that the caller gave may be the impossible ones
                    raise
                raise CheckpointError(f"{error} It stands in {place}. {advice}") from error
        network.shares = self.shares
        network.origin = self.origin
        dtype = next((v.dtype for v in state.values() if v.is_floating_point()), torch.float32)
        try:
            network.to(dtype).load_state_dict(state)
        except Exception as error:
            raise unfit_weights(self.model, place, error) from error
        return network.eval()

    def _refuse_giant(
        self,
        state: Mapping[str, Tensor],
        model: ModelLike,
        values: Mapping[str, Any],
        place: Path | str,
    ) -> None:
        """Refuse settings of a model that is much larger than its weights, before it is built."""
        if not 1 <= self.in_dim <= _MOST_FEATURES:
            raise CheckpointError(
                f"Expected a model of 1 to {_MOST_FEATURES} features in {place}, but got "
                f"{self.in_dim}. Restore the checkpoint, or train again."
            )
        if isinstance(model, MILModel):
            return
        try:
            with torch.device("meta"):
                shell = build_model(model, in_dim=self.in_dim, target=self.target, **values)
        except SgpmilError:
            raise
        except Exception:  # noqa: BLE001 (a model that needs its numbers when it is built)
            return
        wanted = sum(tensor.numel() for tensor in shell.state_dict().values())
        given = sum(tensor.numel() for tensor in state.values())
        if wanted > _MOST_TIMES * given + _FREE_NUMBERS:
            raise CheckpointError(
                f"Expected the weights of a {self.model} of {wanted:,} numbers in {place}, as its "
                f"description says, but got {given:,}. Restore the checkpoint, or train again."
            )


def save_model(
    model: MILModel,
    path: Path | str,
    *,
    class_names: tuple[str, ...] | None = None,
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model to ``path`` (``.safetensors``) and its description beside it (``.json``).

    Args:
        model: The model.
        path: File to write.
        class_names: Name of each class, where the model does not know them: one that was built
            with `num_classes` alone.
        details: Other facts (encoder, epoch, data fingerprint).

    Raises:
        CheckpointError: The folder cannot be written.
    """
    weights, description = _paths(path)
    target = None if class_names is None else ClassTarget(class_names)
    info = CheckpointInfo.of(model, details, target)
    text = json.dumps({"format_version": FORMAT_VERSION, **info.to_json()}, indent=2)
    try:
        with atomic_path(weights) as temporary:
            temporary.write_bytes(save(weights_of(model)))
        write_text(description, text)
    except OSError as error:
        raise CheckpointError(f"Could not write the checkpoint {weights}: {error}.") from error
    return weights


def load_model(
    path: Path | str, *, model: ModelLike | None = None, **settings: Any
) -> tuple[MILModel, CheckpointInfo]:
    """Read a model, in evaluation mode, on the CPU.

    Args:
        path: The ``.safetensors`` file, its ``.json``, or the folder of a fold.
        model: The model's class, for one that is not registered; or a model, a copy of which gets
            the weights. By default, the registered model of the checkpoint's name.
        settings: Settings to replace; a kernel of the user's own must be passed again here.

    Raises:
        CheckpointError: A file is missing, damaged, or does not fit the model.
        SettingsError: A setting to replace does not exist or is impossible.
    """
    weights, description = _paths(path)
    try:
        content = read_json(description)
        version = int(content.pop("format_version"))
        info = CheckpointInfo.from_json(content)
    except FileNotFoundError as error:
        raise CheckpointError(f"Expected a checkpoint at {description}, but found none.") from error
    except Exception as error:  # a damaged file fails in many ways
        raise CheckpointError(
            f"Expected the description of a checkpoint in {description}, but could not read it: "
            f"{reason_of(error)}. Restore the file, or train again."
        ) from error
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{description} has format version {version}, but this sgpmil reads up to "
            f"{FORMAT_VERSION}. Upgrade sgpmil."
        )
    try:
        state = load_file(regular_file(weights))
    except Exception as error:  # likewise
        raise unfit_weights(info.model, weights, error) from error
    return info.build(state, weights, model=model, **settings), info


def weights_of(model: MILModel) -> dict[str, Tensor]:
    """Return the weights of a model by name, as a file stores them."""
    return {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}


def unfit_weights(model: str, place: Path | str, error: Exception) -> CheckpointError:
    """Return the error that weights cannot be read, or are of another model."""
    first = " ".join(line.strip() for line in str(error).splitlines()[:2])
    return CheckpointError(
        f"Expected the weights of a {model} in {place}, but could not load them: {first}"
    )


def read_shares(path: Path | str) -> ClassShares | None:
    """Read the class shares of a checkpoint without its weights; None where it has none."""
    _, description = _paths(path)
    try:
        return ClassShares.from_json(read_json(description).get("shares"))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _registered(name: str, place: Path | str) -> str:
    try:
        return find_model(name).name
    except SettingsError as error:
        raise CheckpointError(
            f"Expected a registered model in {place}, but it is of '{name}'. Pass its class, "
            "load_model(path, model=...), or install the plug-in that registers it."
        ) from error


def _paths(path: Path | str) -> tuple[Path, Path]:
    path = Path(path)
    if path.is_dir():
        path = path / "checkpoint.safetensors"
    if path.suffix not in (".safetensors", ".json"):
        raise CheckpointError(
            f"Expected a checkpoint (.safetensors) or the folder of a fold, but got {path}."
        )
    return path.with_suffix(".safetensors"), path.with_suffix(".json")
