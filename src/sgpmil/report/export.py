"""Export of a trained model as one portable folder.

The command ``sgpmil export`` calls `export_model`.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from sgpmil.bags.files import write_text
from sgpmil.errors import CheckpointError, PredictionError, SettingsError
from sgpmil.evaluation.assessment import Assessment, assess
from sgpmil.evaluation.onnx_graph import write_graph
from sgpmil.models.inducing_patches import InducingPatches
from sgpmil.options import Options
from sgpmil.report.model_card import CardContent, model_card
from sgpmil.runs.description import is_run
from sgpmil.runs.exported_folder import (
    CARD,
    GRAPH,
    ExportedFolder,
    check_new_folder,
    is_exported,
    new_folder,
    write_exported,
)
from sgpmil.runs.hub import check_hub, push
from sgpmil.runs.material import read_material, run_facts
from sgpmil.runs.prediction_folder import is_prediction_folder
from sgpmil.runs.seen_slides import seen_by
from sgpmil.runs.trained_model import TrainedModel, load


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Options of `export_model`.

    Args:
        model: A run, whose folds then predict together; the folder of one fold (runs/x/fold-0); or
            a .safetensors file.
        to: Folder to write.
        name: Title of the model card; by default the name of the folder.
        license: Licence of the model, as the Hugging Face hub spells it, such as apache-2.0.
        encoder: Name of the patch encoder, where the embeddings do not state it.
        slide_names: Keep the names of the slides whose patches are in the weights (the inducing
            patches of sgpmil). They may be names of patients.
        onnx: Write the prediction as a graph too (model.onnx), for programs without PyTorch.
        push_to_hub: Push the folder to the Hugging Face hub, as USER/NAME.
        private: Make it private there.
        overwrite: Replace an exported model.
    """

    model: Path
    to: Path
    name: str | None = None
    license: str | None = None
    encoder: str | None = None
    slide_names: bool = False
    onnx: bool = False
    push_to_hub: str | None = None
    private: bool = False
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """A model that was exported.

    Args:
        path: Its folder.
        model: The model.
        files: Name and size of each file.
        address: Its address on the hub; empty where it was not pushed.
    """

    path: Path
    model: TrainedModel
    files: tuple[tuple[str, int], ...]
    address: str = ""


def export_model(options: ExportOptions) -> Exported:
    """Write a trained model as one folder with weights, configuration and model card.

    Raises:
        CheckpointError: The model cannot be read, or the run has a fold that is not done.
        RunFolderError: The folder exists already, or cannot be written.
        SettingsError: An option needs another one, or the push failed.
        MissingPartError: A package that the options need is not installed.
    """
    check_hub(options.push_to_hub, private=options.private)
    check_new_folder(options.to, overwrite=options.overwrite)
    if is_exported(options.model):
        raise CheckpointError(
            f"Expected a run, a fold or a checkpoint to export, but {options.model} is an exported "
            "model already. Copy the folder."
        )
    if not options.model.exists():
        raise CheckpointError(
            f"Expected a run, a fold or a checkpoint at {options.model}, but there is nothing. "
            "Check the path."
        )
    model = load(options.model)
    if not options.slide_names:
        for network in model:
            for part in network.modules():
                if isinstance(part, InducingPatches):
                    part.forget_slides()
    content = _content(options, model)
    seen = seen_by(options.model, with_names=False)
    described = ExportedFolder(model.names, model.infos, content.model.encoders, seen)
    with new_folder(options.to, overwrite=options.overwrite) as folder:
        write_exported(folder, model.models, described)
        if options.onnx:
            outputs = write_graph(folder / GRAPH, model.models)
            content = replace(content, graph_outputs=outputs)
        write_text(folder / CARD, model_card(content))
    address = ""
    if options.push_to_hub is not None:
        try:
            address = push(options.to, options.push_to_hub, private=options.private)
        except SettingsError as error:
            raise SettingsError(
                f"{error} The model is in {options.to}; to push again, add `overwrite=True`."
            ) from error
    files = sorted((file.name, file.stat().st_size) for file in options.to.iterdir())
    return Exported(options.to, content.model, tuple(files), address)


def _content(options: ExportOptions, model: TrainedModel) -> CardContent:
    """Collect what the model card tells; a checkpoint without a run has little."""
    named = replace(model, encoders=(options.encoder,) if options.encoder else ())
    content = CardContent(
        options.name or options.to.resolve().name,
        named,
        options.license or "",
    )
    place = options.model
    if not is_run(place) and not is_prediction_folder(place):
        return content
    material = read_material(place, keep_seen=False)
    facts = run_facts(material)
    assessment: Assessment | None
    try:
        assessment = assess(material.folds)
    except PredictionError:  # no slide has a label
        assessment = None
    return replace(
        content,
        model=replace(named, encoders=named.encoders or facts.encoders),
        run=material.run,
        facts=facts,
        assessment=assessment,
    )
