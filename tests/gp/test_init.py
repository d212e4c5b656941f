import sgpmil.gp as room
from sgpmil.gp import noise, prior, sampling, sparse


def test_the_room_exports_the_objects_of_its_files():
    assert room.SparseGP is sparse.SparseGP
    assert room.Posterior is sparse.Posterior
    assert room.draw is sampling.draw
    assert room.build_kernel is prior.build_kernel
    assert room.RepeatableNoise is noise.RepeatableNoise
    assert all(hasattr(room, name) for name in room.__all__)
