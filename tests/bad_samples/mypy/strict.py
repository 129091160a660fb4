"""Each line is accepted without ``strict``; the code of the expected error stands at the end of the line."""

from typing import Any


def untyped(x):  # no-untyped-def
    return x


def generic(values: list) -> int:  # type-arg
    return len(values)


def leaks_any(value: Any) -> int:
    return value  # no-any-return


def calls() -> None:
    untyped(1)  # no-untyped-call


def unreachable(value: int) -> int:
    if isinstance(value, str):
        return 0  # unreachable
    return value


kept = 1  # type: ignore  # unused-ignore
