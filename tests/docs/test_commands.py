"""Every command of the documentation is one of the package, and the sequences run as written.

A page's commands run in the order of the page, in a folder that holds what a reader has by then:
slides, embeddings, labels, annotations and runs. Only numbers that make work long are replaced.
"""

import os
import re
import shlex
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import typer
from matplotlib.figure import Figure

from sgpmil.bags import make_kfold, read_labels, write_splits
from sgpmil.cli.main import COMMANDS, _load
from tests.cli.conftest import sgpmil  # noqa: F401
from tests.docs.test_code_blocks import PAGES, REPOSITORY
from tests.report.explained_run import RING, write_features
from tests.slides.extraction.drawn_files import write_slide

SLIDES = (*(f"slide-{number:02d}" for number in range(8, 18)), "phantom-0010", "phantom-0024")
WITH_IMAGE = ("slide-17", "phantom-0010")
NEW = tuple(f"slide-{number}" for number in range(20, 26))

NOT_RUN = {
    r"--weights|--encoder uni_v2": "needs weights that have to be asked for",
    r"\bDATA\b|^sgpmil experiment": "takes public data sets, or many trainings",
    r"^sgpmil bench": "measures speed",
    r"^sgpmil demo": "has a test of its own",
    r"last\.ckpt": "takes a checkpoint of the released code",
    r"^sgpmil predict model\.safetensors": "takes a checkpoint of the released code",
    r"\.\.\.|…": "is shortened",
    r"^sgpmil view": "serves until it is stopped",
    r"--push-to-hub|user/name": "needs a hub",
    r"--track": "needs a tracker",
}
"""Commands that are only parsed, and why."""

UsageError = typer.BadParameter.__base__

NUMBERS = {"--num-slides": "2", "--size": "3072x2048", "--epochs": "1", "--most": "1"}
"""Values of options that make work long, and what takes their place."""


TINY = ("hidden_dims=[8]", "gp_dim=4", "num_inducing=5", "prediction_error=0")
"""Settings of a small SGPMIL."""


@dataclass(frozen=True)
class Command:
    page: str
    words: tuple[str, ...]

    def __str__(self):
        return shlex.join(self.words)

    @property
    def is_run(self):
        return not any(re.search(pattern, str(self)) for pattern in NOT_RUN)


def commands(page):
    """Return the commands of this package on a page, in their order."""
    found, values = [], {}
    for block in re.findall(r"```(?:bash|sh|console)\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["for"]:  # for seed in 1 11 12; do
                values[words[1]] = words[3].rstrip(";")
            elif len(words) == 1 and (given := re.fullmatch(r"(\w+)=(.*)", words[0])):
                values[given[1]] = given[2]
            elif words[:1] == ["sgpmil"]:
                words = [re.sub(r"\$(\w+)", lambda name: values[name[1]], word) for word in words]
                found.append(Command(str(page.relative_to(REPOSITORY)), tuple(words)))
    return found


ALL = {page: commands(page) for page in PAGES}
LONG = ("docs/results", "docs/performance", "docs/concepts/prototypes")
"""Pages of measurements, which take hours."""
SEQUENCES = [
    pytest.param(page, id=name)
    for page, found in ALL.items()
    for name in [str(page.relative_to(REPOSITORY))]
    if any(command.is_run for command in found)
    and not name.startswith(LONG)
    and name != "docs/index.md"  # the first commands of the README
]


@pytest.mark.parametrize(
    "command", [pytest.param(c, id=f"{c.page}: {c}") for found in ALL.values() for c in found]
)
def test_command_and_its_options_exist(command):
    words = [w.replace("_", "-") if w.startswith("--") else w for w in command.words[1:]]
    if words[-1] in ("...", "…"):
        words = words[:-1]
    parse(words)


def parse(words):
    """Parse a command without running it; raise where an option or a value does not exist."""
    name, *rest = words
    assert name in COMMANDS
    found = _load(name)
    while True:
        try:
            context = found.make_context(name, rest)
        except typer.Exit:  # an option that only prints, such as --list-encoders
            return
        if not hasattr(found, "resolve_command"):
            return
        name, found, rest = found.resolve_command(
            context, [*context._protected_args, *context.args]
        )


def test_unknown_options_are_found():
    with pytest.raises(UsageError):
        parse(["train", "--no-such-option", "1"])
    with pytest.raises(UsageError):
        parse(["experiment", "models", "--no-such-option"])


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A folder with what a reader has: slides, embeddings, labels, annotations."""
    folder = tmp_path_factory.mktemp("reader")
    write_features(folder / "features", SLIDES)
    # Bags of the same number are equal, so the new ones are numbered after the others.
    write_features(folder / "new_features", (*SLIDES, *NEW))
    for name in SLIDES:
        (folder / "new_features" / f"{name}.h5").unlink()
    (folder / "slides").mkdir()
    for number, name in enumerate(WITH_IMAGE):
        write_slide(folder / "slides" / f"{name}.tiff", number)
    (folder / "new_slides").mkdir()
    write_slide(folder / "new_slides" / f"{NEW[0]}.tiff", 9)
    rows = [f"{name},case-{n},{'tumour' if n % 2 else 'normal'}" for n, name in enumerate(SLIDES)]
    (folder / "labels.csv").write_text("\n".join(["slide_id,case_id,label", *rows]))
    write_splits(make_kfold(read_labels(folder / "labels.csv"), num_folds=2), folder / "splits")
    corners = "".join(
        f'<Coordinate Order="{n}" X="{x}" Y="{y}"/>' for n, (x, y) in enumerate(RING[:4])
    )
    outline = (
        "<ASAP_Annotations><Annotations><Annotation Name='1' Type='Polygon' PartOfGroup='Tumor'>"
        f"<Coordinates>{corners}</Coordinates></Annotation></Annotations></ASAP_Annotations>"
    )
    for kind in ("xml", "annotations"):
        (folder / kind).mkdir()
        for name in SLIDES[1::2]:
            (folder / kind / f"{name}.xml").write_text(outline)
    shutil.copytree(folder / "splits", folder / "their_splits")
    new = [f"{name},{'tumour' if n % 2 else 'normal'}" for n, name in enumerate(NEW)]
    (folder / "new_labels.csv").write_text("\n".join(["slide_id,label", *new]))
    for kind in ("slides", "annotations"):
        for place in (folder / "phantoms", folder / "runs/demo/phantoms"):
            shutil.copytree(folder / kind, place / kind)
    rng = np.random.default_rng(0)
    for name in ("predictions", "validation", "other_system", "other-system"):
        positive = rng.uniform(size=len(SLIDES)).round(3)
        rows = [
            f"{s},{n % 2},{1 - p:.3f},{p}"
            for n, (s, p) in enumerate(zip(SLIDES, positive, strict=True))
        ]
        (folder / f"{name}.csv").write_text("\n".join(["slide_id,label,p_0,p_1", *rows]))
    return folder


@pytest.fixture(scope="session")
def runs(world):
    """Runs of two models on the reader's embeddings, and predictions of one of them."""
    from sgpmil.experiments.train import TrainOptions, train
    from sgpmil.runs.predict import PredictOptions, predict_folder

    features, labels, splits = world / "features", world / "labels.csv", world / "splits"
    sizes = {"sgpmil": tuple(f"model.settings.{one}" for one in TINY), "abmil": ()}
    names = {"sgpmil": ("a", "sgpmil", "first", "demo/run"), "abmil": ("b", "c", "abmil", "clam")}
    for model, settings in sizes.items():
        first, *others = (world / "runs" / name for name in names[model])
        # Paths as the reader has them: relative to a folder that each page gets a copy of.
        here = os.getcwd()
        os.chdir(world)
        try:
            train(
                TrainOptions(
                    features=features.relative_to(world),
                    labels=labels.relative_to(world),
                    splits=splits.relative_to(world),
                    run=first.relative_to(world),
                    model=model,
                    epochs=1,
                    assignments=settings,
                )
            )
        finally:
            os.chdir(here)
        for other in others:
            shutil.copytree(first, other)
    predict_folder(
        PredictOptions(
            model=world / "runs/a", features=world / "new_features", out=world / "predictions"
        )
    )
    return world


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", SEQUENCES)
def test_sequence_runs_as_written(page, runs, tmp_path, monkeypatch, sgpmil):  # noqa: F811
    folder = tmp_path / "reader"
    shutil.copytree(runs, folder, symlinks=True)
    for made in (c.words for c in ALL[page] if c.is_run):
        # What the page makes itself is not there yet.
        for option in ("--run", "--out", "--to"):
            if option in made and "--resume" not in made:
                shutil.rmtree(folder / made[made.index(option) + 1], ignore_errors=True)
        if made[1] == "phantom":
            shutil.rmtree(folder / made[2], ignore_errors=True)
    if page.name == "extract.md":  # only some slides have an image, and all of them are extracted
        lines = (folder / "labels.csv").read_text().splitlines()
        kept = [line for line in lines[1:] if line.split(",")[0] in WITH_IMAGE]
        (folder / "labels.csv").write_text("\n".join([lines[0], *kept]))
    monkeypatch.chdir(folder)
    # Pictures of few pixels: their drawing would take most of the time.
    draw = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda *a, **k: draw(*a, **{**k, "dpi": 20}))
    for command in ALL[page]:
        if command.is_run:
            code, out, error = sgpmil(*quick(command.words[1:]))
            few = command.words[1] == "inspect" and "Not ready for 5 folds" in out
            assert code == (1 if few else 0), f"{command}\n{out}\n{error}"


def quick(words):
    words = list(words)
    for option, value in NUMBERS.items():
        if option in words:
            words[words.index(option) + 1] = value
    if words[0] == "train" and "--epochs" not in words:
        words += ["--epochs", "1"]
    if words[0] == "explain" and not {"--most", "--only"} & set(words):
        words += ["--most", "1"]
    if words[0] == "train" and "--model" not in words:
        words += [word for one in TINY for word in ("--set", f"model.settings.{one}")]
    return words
