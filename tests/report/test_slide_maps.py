import json

import numpy as np
import pytest
from matplotlib.image import imread

pytest.importorskip("tifffile", reason="pip install 'sgpmil[slides]'")
pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")

from sgpmil.evaluation import InstanceScores, Prediction, PredictionTable
from sgpmil.report.attention_figures import SlidePicture, attention_map_figure
from sgpmil.report.slide_maps import write_slide_maps
from sgpmil.slides.annotations import open_annotations
from tests.slides.extraction.drawn_files import HEIGHT, WIDTH, write_slide


def scores(num=12):
    rng = np.random.default_rng(0)
    coords = np.array([(256 * (k % 4), 256 * (k // 4)) for k in range(num)])
    return InstanceScores(
        attention_mean=rng.uniform(size=num),
        attention_std=rng.uniform(0.01, 0.1, size=num),
        coords=coords,
        patch_size=256,
    )


def table():
    predictions = [
        Prediction.from_samples(name, "case", label, np.array([[1 - p, p]]), scores())
        for name, label, p in (("a", 0, 0.1), ("b", 1, 0.8))
    ]
    return PredictionTable(tuple(predictions), ("normal", "tumour"))


def test_the_surest_slide_is_drawn_with_its_annotations(tmp_path):
    (tmp_path / "slides").mkdir()
    for name in ("a", "b"):
        write_slide(tmp_path / "slides" / f"{name}.tiff")
    (tmp_path / "drawn").mkdir()
    ring = [[300, 300], [600, 300], [600, 600], [300, 300]]
    feature = {
        "type": "Feature",
        "properties": {"classification": {"name": "Tumor"}},
        "geometry": {"type": "Polygon", "coordinates": [ring]},
    }
    for name, features in (("a", []), ("b", [feature])):
        content = {"type": "FeatureCollection", "features": features}
        (tmp_path / "drawn" / f"{name}.geojson").write_text(json.dumps(content))
    drawn = open_annotations(tmp_path / "drawn")
    with_outline = write_slide_maps(tmp_path / "a", [table()], tmp_path / "slides", drawn)
    without = write_slide_maps(tmp_path / "b", [table()], tmp_path / "slides")
    assert [path.name for path in with_outline] == ["map-b.png"]
    first, second = imread(with_outline[0]), imread(without[0])
    assert first.shape == second.shape
    assert not np.array_equal(first, second)


def test_the_picture_lies_where_the_map_does():
    red = np.zeros((HEIGHT // 16, WIDTH // 16, 3), np.uint8)
    red[..., 0] = 255
    ring = np.array([[256.0, 256.0], [512.0, 256.0], [512.0, 512.0], [256.0, 256.0]])
    picture = SlidePicture(red, (WIDTH, HEIGHT), (ring,), "tumour")
    figure = attention_map_figure(scores(), "a slide", picture=picture)
    shown = {axes.get_title(loc="left"): axes for axes in figure.axes}
    slide, attention = shown["Slide"], shown["Attention, posterior mean"]
    assert slide.images[0].get_extent() == [0, WIDTH, HEIGHT, 0]
    assert slide.get_xlim() == attention.get_xlim()
    assert slide.get_ylim() == attention.get_ylim()
    for axes in (slide, attention):
        assert any(np.array_equal(line.get_xydata(), ring) for line in axes.lines)
