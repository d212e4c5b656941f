import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from sgpmil.bags import BagDataset
from sgpmil.errors import ExplanationError
from sgpmil.viewer.similar_patches import PatchSearch


@pytest.fixture
def arrays(rng):
    return [rng.normal(size=(n, 5)).astype(np.float32) for n in (12, 7, 30)]


def test_the_most_similar_patches_have_the_largest_cosines(arrays):
    search = PatchSearch(BagDataset.from_arrays(arrays, slide_ids=["a", "b", "c"]))
    found = search.search("a", 4, most=3)
    own = cosine_similarity(arrays[0][4:5], arrays[0])[0]
    own[4] = -2
    assert [one.patch for one in found.here] == np.argsort(-own)[:3].tolist()
    assert [one.similarity for one in found.here] == pytest.approx(np.sort(own)[::-1][:3].tolist())
    best = {
        name: cosine_similarity(arrays[0][4:5], arrays[i])[0] for i, name in ((1, "b"), (2, "c"))
    }
    wanted = sorted(best, key=lambda name: -best[name].max())
    assert [one.slide_id for one in found.elsewhere] == wanted
    for one in found.elsewhere:
        assert one.patch == int(best[one.slide_id].argmax())
        assert one.similarity == pytest.approx(float(best[one.slide_id].max()))
    assert "49 patches of 3 slides" in found.note


def test_slides_that_do_not_fit_give_some_of_their_patches(arrays):
    bags = BagDataset.from_arrays(arrays, slide_ids=["a", "b", "c"])
    found = PatchSearch(bags, most_bytes=4 * 5 * 15).search("a", 0)
    assert "15 patches of 3 slides" in found.note
    assert "evenly spaced" in found.note
    assert len(found.elsewhere) == 2


def test_unknown_patches_are_refused(arrays):
    search = PatchSearch(BagDataset.from_arrays(arrays))
    with pytest.raises(ExplanationError, match="from 0 to 11"):
        search.search("bag-0", 12)
    with pytest.raises(ExplanationError, match="--features"):
        search.search("other", 0)
