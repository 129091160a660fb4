"""What keeps Spark from starting, each in one clear line; and how errors of ours pass through Spark.

The errors are for the operator: nothing has been written.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.base.errors import HoldfastError, Invalid, Unavailable

FAILED = "holdfast-error:"


class NoSpark(Invalid):
    """The extra that brings PySpark is not installed."""


class NoJava(Invalid):
    """Spark on this machine needs Java 17 or newer."""


class WrongMaster(Invalid):
    """There is no such Spark master."""


class SparkFailed(Unavailable):
    """Spark started and then gave up, for a reason of its own."""


@contextmanager
def in_one_line() -> Iterator[None]:
    """An error of ours as one line, which is found in whatever Spark prints around it."""
    try:
        yield
    except HoldfastError as error:
        hint = f" (hint: {error.remedy})" if error.remedy else ""
        raise RuntimeError(f"{FAILED}{error.kind}: {error}{hint}".replace("\n", " ")) from None
