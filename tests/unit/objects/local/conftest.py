"""A local store in an empty place."""

from pathlib import Path

import pytest

from holdfast.objects.local import LocalStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)
