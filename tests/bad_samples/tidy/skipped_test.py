import pytest

fcntl = pytest.importorskip("fcntl")  # FIRES


@pytest.mark.skipif(True, reason="not today")  # FIRES
def test_one():
    assert fcntl


@pytest.mark.xfail  # FIRES
def test_two():
    pytest.skip("tomorrow")  # FIRES


@pytest.mark.parametrize("n", [1])
def test_three(n):
    assert n
