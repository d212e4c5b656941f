"""Recipes: an experiment in one YAML file.

A recipe has the sections `data`, `model` and `training`. Values of `training` replace the model's
own. Unknown keys are refused with their path. Keys may be written with dashes or underscores.
"""

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from sgpmil.bags.files import regular_file
from sgpmil.errors import SettingsError, damage_as, reason_of
from sgpmil.models.registry import list_models, resolve_settings
from sgpmil.training.settings import TrainingSettings, training_base
from sgpmil.yaml_values import LONGEST, read_yaml_text

_LONGEST_SHOWN = 200
_RECIPES = files("sgpmil.experiments") / "recipes"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSection(_Section):
    """Bags, labels and folds of a recipe.

    Attributes:
        features: Folder of bag files, packed store, or `.npz` of many bags.
        labels: Table of labels; not needed where the bags carry them.
        splits: File or folder of folds; five patient-grouped folds are made without it.
        classes: Order of the classes.
        ordinal: Whether the classes are ordered, such as grades.
        slide_column: Column of slide names.
        label_column: Column of labels.
        case_column: Column of patients.
        slide_table: Table of the slides of each patient.
        skip_missing: Leave out slides without label, labels without slide, and unknown slides
            of the splits.
        skip_bad: Leave out bags that are damaged, not finite, or of another width than most.
        shared_case: Treatment of a patient in two parts of a fold: error or warn.
        cache: Packed store to make and read from.
        folds: Number of folds that are made.
        folds_seed: Seed of the folds that are made.
    """

    features: Path
    labels: Path | None = None
    splits: Path | None = None
    classes: tuple[str, ...] | None = None
    ordinal: bool = False
    slide_column: str | None = None
    label_column: str | None = None
    case_column: str | None = None
    slide_table: Path | None = None
    skip_missing: bool = False
    skip_bad: bool = False
    shared_case: Literal["error", "warn"] = "error"
    cache: Path | None = None
    folds: int = 5
    folds_seed: int = 0


class ModelSection(_Section):
    """Model of a recipe, and its settings.

    Attributes:
        name: A name of `sgpmil.list_models`.
        settings: Settings that differ from the model's defaults; ``preset`` names others.
    """

    name: str = "sgpmil"
    settings: dict[str, Any] = Field(default_factory=dict)


class Recipe(_Section):
    """An experiment.

    Attributes:
        data: Bags, labels and folds.
        model: Model, and its settings.
        training: Training settings; missing ones are the model's own, of `default_training`.
    """

    data: DataSection
    model: ModelSection = ModelSection()
    training: TrainingSettings = TrainingSettings()

    @model_validator(mode="before")
    @classmethod
    def _complete_training(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        given = content.get("training") or {}
        if not isinstance(given, dict):
            return content
        name = _model_name(content) or ModelSection().name
        return content | {"training": asdict(training_base(name, given)) | given}


@dataclass(frozen=True)
class RecipeDraft:
    """What a recipe says, before it is checked.

    Args:
        content: Its sections.
        path: File or name that it comes from, for messages.
        own_model: Model that the file names.
    """

    content: Mapping[str, Any]
    path: Path | str | None = None
    own_model: str | None = None

    def with_values(self, values: Mapping[str, Any]) -> "RecipeDraft":
        """Return a draft with other values by dotted path; None leaves one alone.

        Raises:
            SettingsError: A path leads through what is no section.
        """
        content = copy.deepcopy(dict(self.content))
        for key, value in values.items():
            if value is not None:
                _assign(content, key, value)
        return replace(self, content=content)

    def recipe(self) -> Recipe:
        """Return the recipe.

        Raises:
            SettingsError: A key or value is refused; its path is named.
        """
        content, path, own_model = copy.deepcopy(dict(self.content)), self.path, self.own_model
        training = content.get("training")
        if isinstance(training, dict) and isinstance(training.get("precision"), int):
            training["precision"] = str(training["precision"])  # YAML reads 32 as a number
        try:
            recipe = _ADAPTER.validate_python(content)
        except ValidationError as error:
            raise SettingsError(_first_problem(error, path)) from error
        try:
            resolve_settings(recipe.model.name, recipe.model.settings)
        except SettingsError as error:
            place = "model.settings" if recipe.model.name in list_models() else "model.name"
            text = f"In {place}: {error}"
            if own_model is not None and own_model != recipe.model.name:
                text += (
                    f" The recipe {path} is of {own_model}; its settings may not fit another model."
                )
            raise SettingsError(text) from error
        return recipe


def draft_recipe(
    path: Path | str | None = None,
    *,
    values: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> RecipeDraft:
    """Read a recipe and replace some of its values, without checking it; see `load_recipe`.

    Raises:
        SettingsError: The file is unreadable, or an assignment is none.
    """
    content = _read_yaml(_recipe_path(path)) if path is not None else {}
    draft = RecipeDraft(content, path, _model_name(content)).with_values(values or {})
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"Expected `assignments` as KEY=VALUE, but got '{text}'.")
        content = dict(draft.content)
        _assign(content, key, parse_value(value, text))
        draft = replace(draft, content=content)
    return draft


def load_recipe(
    path: Path | str | None = None,
    *,
    values: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> Recipe:
    """Read a recipe and replace some of its values.

    Args:
        path: YAML file, or the name of a recipe of the package (see `list_recipes`); without it,
            everything comes from the values.
        values: Values by dotted path, such as ``{"training.epochs": 10}``; None leaves one alone.
        assignments: The same as text, ``training.epochs=10``; these come last.

    Raises:
        SettingsError: The file is unreadable, or a key or value is refused; its path is named.
    """
    return draft_recipe(path, values=values, assignments=assignments).recipe()


def list_recipes() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in _RECIPES.iterdir() if ".yaml" in entry.name
    )


def starter_recipe() -> str:
    """Return the commented recipe that ``sgpmil init`` writes."""
    return (_RECIPES / "starter.yaml").read_text()


def _model_name(content: Mapping[str, Any]) -> str | None:
    model = content.get("model", {})
    name = model.get("name") if isinstance(model, dict) else getattr(model, "name", None)
    return name if isinstance(name, str) else None


def _recipe_path(path: Path | str) -> Traversable:
    if not Path(path).exists() and str(path) in list_recipes():
        return _RECIPES / f"{path}.yaml"
    return Path(path)


def _read_yaml(path: Traversable) -> dict[str, Any]:
    try:
        content = read_yaml(path, "a recipe")
    except FileNotFoundError as error:
        raise SettingsError(
            f"Expected a recipe at {path}, but there is none. "
            f"Recipes by name: {', '.join(list_recipes())}."
        ) from error
    if not isinstance(content, dict):
        raise SettingsError(f"Expected sections (data, model, training) in {path}.")
    normalised: dict[str, Any] = _normalised(content)
    return normalised


def read_yaml(path: Traversable, what: str) -> Any:
    """Read a YAML file of settings.

    Args:
        path: The file.
        what: Its content, for messages.

    Raises:
        SettingsError: It is damaged, too large, or repeats itself without end.
        FileNotFoundError: There is none.
    """
    with damage_as(SettingsError, f"{what} as YAML", path, "Correct the file."):
        try:
            if isinstance(path, Path):
                regular_file(path)
            with path.open("rb") as file:
                text = file.read(4 * LONGEST + 1)  # a character has up to four bytes
        except FileNotFoundError as error:
            missing = error
        else:
            if len(text) > 4 * LONGEST:
                raise ValueError(f"more than {LONGEST} characters")
            return read_yaml_text(text.decode("utf-8-sig"))
    raise missing


def _normalised(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key).replace("-", "_"): _normalised(inner) for key, inner in value.items()}
    return value


def _assign(content: dict[str, Any], key: str, value: Any) -> None:
    *sections, name = key.replace("-", "_").split(".")
    place = content
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise SettingsError(f"Expected a section at '{section}' of '{key}'.")
    place[name] = value


def parse_value(value: str, text: str) -> Any:
    """Read a value of a setting as YAML.

    Args:
        value: The value.
        text: Text that it stands in, for the message.

    Raises:
        SettingsError: It is no value.
    """
    try:
        parsed = read_yaml_text(value)
    except Exception as error:  # damaged text fails in many ways
        raise SettingsError(
            f"Expected a value in '{text[:_LONGEST_SHOWN]}', but got {reason_of(error)}."
        ) from error
    if isinstance(parsed, str):
        # YAML 1.1 takes 1e-4, without a point, for text.
        try:
            return float(parsed)
        except ValueError:
            return parsed
    return parsed


def _known_keys() -> list[str]:
    """Return the paths of all keys of a recipe but the settings of the model."""
    sections = {
        "data": list(DataSection.model_fields),
        "model": list(ModelSection.model_fields),
        "training": [field.name for field in fields(TrainingSettings)],
    }
    return [f"{section}.{name}" for section, names in sections.items() for name in names]


def _first_problem(error: ValidationError, path: Path | str | None) -> str:
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    where = f" (in {path})" if path is not None else ""
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = f"Expected only known keys in a recipe, but got '{key}'{where}."
        if problem["loc"][0] == "model":
            return f"{known} Settings of the model are under model.settings."
        last = {one.rpartition(".")[2]: one for one in _known_keys()}
        close = difflib.get_close_matches(key.rpartition(".")[2].lower(), last, n=1)
        return (
            f"{known} Did you mean '{last[close[0]]}'?" if close else f"{known} Check its spelling."
        )
    if problem["type"] == "missing" and key in ("data", "data.features"):
        return (
            f"Expected bags to train on (data.features){where}, but got none. Give a folder with "
            "`features`, or a recipe with `recipe`."
        )
    if problem["type"] == "missing":
        return f"Expected a value for '{key}', but got none{where}."
    given = repr(problem["input"])
    if len(given) > _LONGEST_SHOWN:
        given = f"{given[:_LONGEST_SHOWN]} …"
    return f"Expected another value for '{key}' than {given}{where}: {problem['msg']}."


_ADAPTER = TypeAdapter(Recipe)
