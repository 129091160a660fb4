"""What the demo counts with: a register of whole numbers."""

from holdfast.objects.register import Plain

COUNTER = Plain("holdfast.demo")


def plus_one(value: int | None) -> int:
    return (value or 0) + 1
