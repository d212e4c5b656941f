from itertools import combinations

import numpy as np

from sgpmil.explanation.prototypes import NEUTRAL, PALETTE, prototype_colours

# How the three kinds of colour-blind see linear RGB (Machado, Oliveira and Fernandes, 2009).
EYES = {
    "normal": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(colour: str, eye) -> np.ndarray:
    code = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)
    seen = TO_XYZ @ np.clip(np.asarray(eye) @ linear, 0, 1) / WHITE
    f = np.where(seen > 216 / 24389, np.cbrt(seen), (24389 / 27 * seen + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_every_two_colours_differ_for_every_eye():
    for eye in EYES.values():
        for one, other in combinations([*PALETTE, NEUTRAL, "#FFFFFF"], 2):
            assert np.linalg.norm(lab(one, eye) - lab(other, eye)) > 20


def test_the_rest_is_grey():
    colours = prototype_colours(list(range(20, 0, -1)))
    assert [colours[n] for n in range(20, 10, -1)] == list(PALETTE)
    assert {colours[n] for n in range(10, 0, -1)} == {NEUTRAL}
