import pytest


def test_nothing():  # FIRES
    print("ran")


async def test_constant():  # FIRES
    assert True


def test_compares():
    assert 1 + 1 == 2


def test_raises():
    with pytest.raises(ZeroDivisionError):
        1 / 0


def test_law():
    law_of_creation(1)


def helper():
    return 1
