"""What tests of stores share."""

import pytest

from holdfast.base import disk


@pytest.fixture
def forced_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are forced to disk by ``os.fsync``, which a test can watch, slow down and break."""
    monkeypatch.setattr(disk, "RINGS", False)
