import pytest


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Keep compiled programs of other tests out of a test."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
