from base64 import b64decode
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from sgpmil.report.figures.canvas import new_figure
from sgpmil.report.pages.blocks import photo_image, pixels_image, plot_image


def content(image, kind):
    head, data = image.uri.split(",", 1)
    assert head == f"data:image/{kind};base64"
    return b64decode(data, validate=True)


def drawn():
    figure = new_figure(4.0, 3.0)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1])
    axes.set_title("A & B < C")
    return figure


def test_a_plot_is_svg_and_the_same_every_time():
    first, second = plot_image(drawn(), "a line"), plot_image(drawn(), "a line")
    assert first == second
    assert (first.width, first.height, first.alt) == (384, 288, "a line")
    root = ElementTree.fromstring(content(first, "svg+xml"))  # noqa: S314
    assert root.tag.endswith("svg")
    assert root.attrib["viewBox"] == "0 0 288 216"
    assert not list(root.iter("{http://www.w3.org/2000/svg}text"))  # letters are outlines


def test_a_photo_is_webp_of_the_figure():
    with Image.open(BytesIO(content(photo_image(drawn(), "x", dpi=100), "webp"))) as image:
        assert image.size == (400, 300)
        found = np.asarray(image.convert("RGB"), dtype=float)
    saved = BytesIO()
    drawn().savefig(saved, format="png", dpi=100)
    with Image.open(saved) as image:
        expected = np.asarray(image.convert("RGB"), dtype=float)
    assert np.abs(found - expected).mean() < 3


def test_pixels_come_back():
    rng = np.random.default_rng(0)
    pixels = np.kron(rng.integers(0, 255, (4, 6, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    image = pixels_image(pixels, "patches")
    assert (image.width, image.height) == (96, 64)
    with Image.open(BytesIO(content(image, "webp"))) as back:
        assert np.abs(np.asarray(back.convert("RGB"), float) - pixels).mean() < 6
