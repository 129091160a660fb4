"""What tests of stores share."""

import pytest

from holdfast.base import disk
from holdfast.objects.local import root


@pytest.fixture
def forced_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are forced to disk by ``os.fsync``, which a test can watch, slow down and break."""
    monkeypatch.setattr(disk, "RINGS", False)
    monkeypatch.setattr(root, "_has_journal", lambda _device: True)  # one by one
