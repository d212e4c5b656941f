"""Models by name, with their settings, presets and training.

A model registers itself with `register` beside its class. The models of this package are imported
when they are first used; those of other packages are found by the entry points ``sgpmil.models``.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from typing import Any, TypeAlias, TypeVar

from sgpmil.bags.target import ClassTarget, Target
from sgpmil.errors import SettingsError
from sgpmil.models import BUILT_IN
from sgpmil.models.contract import MILModel
from sgpmil.plugins import load_plugins

ModelLike: TypeAlias = str | type[MILModel] | MILModel
"""A name of `list_models`, the class of a model, or a model of which copies are trained."""

ONE_BAG_A_STEP: Mapping[str, Any] = {"bags_per_step": 1, "warmup_epochs": 0}
"""Training of every model in the SGPMIL paper's code, which most models here start from."""

_Model = TypeVar("_Model", bound=type[MILModel])


@dataclass(frozen=True)
class ModelEntry:
    """A model of the registry.

    Args:
        name: Its name.
        build: Its class.
        default: The settings that are used unless others are given.
        presets: Other named settings.
        training: Training settings of the model that differ from SGPMIL's.
    """

    name: str
    build: Callable[[int, int, Any], MILModel]
    default: Any
    presets: Mapping[str, Any]
    training: Mapping[str, Any]


_ENTRIES: dict[str, ModelEntry] = {}


def register(
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    training: Mapping[str, Any] | None = None,
) -> Callable[[_Model], _Model]:
    """Register a class of models under a name. A class may have several names.

    The type of the settings is that of the class's annotation ``settings: MySettings``.

    Args:
        name: The name.
        settings: Settings of this name that differ from the defaults of the settings' type.
        presets: Other settings by the name of a preset, as values that differ from `settings`.
        training: Training settings that differ from the defaults, such as ``{"epochs": 20}``.

    Raises:
        SettingsError: Another class has the name, or a setting does not exist.
    """

    def add(model: _Model) -> _Model:
        taken = _ENTRIES.get(name)
        owner = BUILT_IN.get(name, model.__module__) if taken is None else _path(taken.build)
        # A class that is defined again, as in a notebook, replaces the one before.
        if owner not in (model.__module__, _path(model)):
            raise SettingsError(
                f"Expected a new name for the model {_path(model)}, but '{name}' is registered "
                f"for {owner}. Choose another name."
            )
        default = _changed(name, _default_settings(model), settings or {})
        _ENTRIES[name] = ModelEntry(
            name,
            model,
            default,
            {key: _changed(name, default, values) for key, values in (presets or {}).items()},
            dict(training or {}),
        )
        return model

    return add


def list_models() -> list[str]:
    """Return the names of all models, those of plug-ins among them.

    Example:
        >>> "sgpmil" in list_models()
        True
    """
    load_plugins("sgpmil.models")
    return sorted({*BUILT_IN, *_ENTRIES})


def find_model(model: ModelLike) -> ModelEntry:
    """Return the registry's entry of a model.

    A class or a model that is not registered has the defaults of its settings, no presets, and
    the defaults of `TrainingSettings`; its name is the path of the class.

    Raises:
        SettingsError: There is no model of that name, or its settings are not a dataclass.
    """
    if isinstance(model, MILModel):
        known = find_model(model.name if model.name in _ENTRIES else type(model))
        return replace(known, default=_checked_settings(type(model), model.settings), presets={})
    if isinstance(model, type):
        found = [entry for entry in _ENTRIES.values() if entry.build is model]
        # Of several names, the one that changes no setting.
        found.sort(key=lambda entry: entry.default != _default_settings(model))
        return (
            found[0] if found else ModelEntry(_path(model), model, _default_settings(model), {}, {})
        )
    if model not in _ENTRIES:
        if model in BUILT_IN:
            import_module(BUILT_IN[model])
        else:
            load_plugins("sgpmil.models")
    if model not in _ENTRIES:
        raise SettingsError(unknown_name("model", model, list_models()))
    return _ENTRIES[model]


def resolve_settings(model: ModelLike, settings: Mapping[str, Any]) -> Any:
    """Return a model's settings with some replaced.

    Args:
        model: A name of `list_models`, a class, or a model.
        settings: Values by field, and optionally ``preset``, which names the other values.

    Raises:
        SettingsError: The model, preset or a setting does not exist, or a value is impossible, or
            the model is built already and has other settings.
    """
    entry = find_model(model)
    if isinstance(model, MILModel) and settings:
        raise SettingsError(
            f"Expected no settings beside a model that is built already, but got "
            f"{', '.join(settings)}. Pass its name or its class instead."
        )
    values = dict(settings)
    preset = values.pop("preset", None)
    start = entry.default
    if preset not in (None, "default"):
        if preset not in entry.presets:
            choices = ["default", *entry.presets]
            raise SettingsError(unknown_name(f"preset of {entry.name}", str(preset), choices))
        start = entry.presets[preset]
    return _changed(entry.name, start, values)


def build_model(
    name: ModelLike,
    *,
    in_dim: int,
    num_classes: int | None = None,
    target: Target | None = None,
    **settings: Any,
) -> MILModel:
    """Build a model.

    Args:
        name: A name of `list_models`, or a class of models; of a model, a copy is made.
        in_dim: Number of features of an instance.
        num_classes: Number of classes: short for a target whose classes are named by number.
        target: Quantity that the model predicts.
        settings: Values of the model's settings that differ from its defaults; ``preset``
            names other defaults (``paper`` or ``released`` for SGPMIL).

    Raises:
        SettingsError: The model or a setting does not exist, or a value is impossible; or a model
            to be copied cannot be, or is for other features or classes.

    Example:
        >>> build_model("sgpmil", in_dim=1024, num_classes=2).num_parameters()
        680085
    """
    resolved = resolve_settings(name, settings)
    if target is None:
        target = ClassTarget.numbered(num_classes or 0)
    if in_dim < 1 or target.num_outputs < 2:
        raise SettingsError(
            "Expected in_dim >= 1 and num_classes >= 2, but got "
            f"{in_dim} and {target.num_outputs if num_classes is None else num_classes}."
        )
    entry = find_model(name)
    if isinstance(name, MILModel):
        model = _copied(name, in_dim, target)
    else:
        model = entry.build(in_dim, target.num_outputs, resolved)
    model.name, model.target = entry.name, target
    return model


def _copied(model: MILModel, in_dim: int, target: Target) -> MILModel:
    if (model.in_dim, model.num_outputs) != (in_dim, target.num_outputs):
        raise SettingsError(
            f"Expected a model for {in_dim} features and {target.num_outputs} classes, but the "
            f"{type(model).__name__} is for {model.in_dim} and {model.num_outputs}. Build it for "
            "these bags, or pass its class."
        )
    try:
        return deepcopy(model)
    except Exception as error:
        raise SettingsError(
            f"Expected a model that can be copied, but the {type(model).__name__} cannot "
            f"({error}). Pass its class instead."
        ) from error


def _default_settings(model: type[MILModel]) -> Any:
    """Build the settings that a class's annotation ``settings`` names."""
    # MILModel has the annotation, so that every class has or inherits one.
    named = next(base for base in model.__mro__ if "settings" in inspect.get_annotations(base))
    return _checked_settings(model, inspect.get_annotations(named, eval_str=True)["settings"]())


def _checked_settings(model: type[MILModel], settings: Any) -> Any:
    if not is_dataclass(settings):
        raise SettingsError(
            f"Expected the settings of {_path(model)} to be a dataclass, but got "
            f"{type(settings).__name__}. Derive them from sgpmil.models.ModelSettings."
        )
    return settings


def _changed(name: str, start: Any, given: Mapping[str, Any]) -> Any:
    """Replace some values of settings, and refuse unknown names and wrong kinds."""
    # JSON and YAML have no tuples.
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    known = {f.name: "None" in str(f.type) for f in fields(start)}
    for key, value in values.items():
        if key not in known:
            raise SettingsError(unknown_name(f"setting of {name}", key, list(known)))
        if key != "kernel" and (value is not None or not known[key]):  # a kernel may be an object
            values[key] = checked_value(key, value, getattr(start, key))
    return replace(start, **values)


def _path(model: Any) -> str:
    return f"{model.__module__}.{model.__qualname__}"


def checked_value(name: str, value: Any, default: Any) -> Any:
    """Return a value if it has the default's kind, or refuse it.

    Args:
        name: Name of the setting.
        value: The value; a list becomes a tuple, which JSON and YAML do not have.
        default: A right value; None stands for a number.

    Raises:
        SettingsError: The value has another kind.

    Example:
        >>> checked_value("jitter", 1, 1e-4)
        1.0
    """
    if isinstance(value, list):
        value = tuple(value)
    if any(_is_whole(v) and abs(v) >= 2**63 for v in (value if type(value) is tuple else [value])):
        raise SettingsError(
            f"Expected {name} below 2^63, but got a larger number. Use a smaller one."
        )
    whole = isinstance(default, tuple) and all(_is_whole(v) for v in default)
    if isinstance(default, bool):
        fits, kind = isinstance(value, bool), "yes or no"
    elif isinstance(default, int):
        fits, kind = _is_whole(value), "a whole number"
    elif isinstance(default, float) or default is None:
        fits, kind = _is_number(value), "a finite number"
    elif isinstance(default, tuple):
        fits = isinstance(value, tuple) and all(map(_is_whole if whole else _is_number, value))
        kind = "a list of whole numbers" if whole else "a list of finite numbers"
    else:
        fits, kind = isinstance(value, str), "a name"
    if not fits:
        raise SettingsError(f"Expected {name} to be {kind}, but got {value!r}.")
    return float(value) if isinstance(default, float) else value


def unknown_name(what: str, name: str, known: Sequence[str]) -> str:
    """Return the message that a name is unknown, with the most similar known one.

    Example:
        >>> unknown_name("model", "abmill", ["abmil", "agp"])
        "Expected a model among abmil, agp, but got 'abmill'. Did you mean 'abmil'?"
    """
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"Expected a {what} among {', '.join(known)}, but got '{name}'.{hint}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))
