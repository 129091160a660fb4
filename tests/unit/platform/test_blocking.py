"""The types of ``holdfast.connect`` are those of the async classes."""

from tests.tidy.blocking import TARGET, generated


def test_the_stub_of_connections_is_that_of_the_classes() -> None:
    assert TARGET.read_text(encoding="utf-8") == generated(), "run: python -m tests.tidy.blocking"
