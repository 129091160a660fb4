"""Pages that start Spark run over the session that tests share; without one they would start their own."""

from pathlib import Path

import pytest

from tests.test_docs import SPARK_PAGES, examples_run


def test_there_is_such_a_page() -> None:
    assert SPARK_PAGES


@pytest.mark.parametrize("name", SPARK_PAGES)
def test_examples_run(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the session: a store may be named by a path that Spark's workers must know too."""
    monkeypatch.chdir(home)
    ran, shown = examples_run(name, monkeypatch)
    assert ran == shown
