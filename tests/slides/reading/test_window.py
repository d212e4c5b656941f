import numpy as np
import pytest

from sgpmil.slides.reading.window import clipped_window


@pytest.mark.parametrize("x", [-30, -10, -3, 0, 4, 12, 15, 40])
@pytest.mark.parametrize("y", [-30, -3, 0, 5, 9, 40])
def test_as_if_the_image_had_a_white_frame(rng, x, y):
    image = rng.integers(0, 255, (10, 15, 3), dtype=np.uint8)
    framed = np.pad(image, ((60, 60), (60, 60), (0, 0)), constant_values=255)
    found = clipped_window(
        lambda left, top, w, h: image[top : top + h, left : left + w], (x, y, 7, 20), (15, 10)
    )
    np.testing.assert_array_equal(found, framed[y + 60 : y + 80, x + 60 : x + 67])
