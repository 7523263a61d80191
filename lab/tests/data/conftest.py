import pytest


@pytest.fixture(autouse=True)
def no_data_of_this_machine(monkeypatch, tmp_path):
    """Whoever runs the tests may have data sets: they must not be found."""
    monkeypatch.delenv("NCODE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
