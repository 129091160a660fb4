"""A store of its own for each test."""

import pytest

from tests.unit.ontology.desk import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()
