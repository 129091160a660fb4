"""Errors of starting Spark, each one line; and how our errors are passed through Spark.

The errors are for the operator: nothing has been written.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.base.errors import Denied, HoldfastError, Invalid, Unavailable

FAILED = "holdfast-error:"


class NoSpark(Invalid):
    """The extra that brings PySpark is not installed."""


class NoJava(Invalid):
    """Spark on this machine needs Java 17 or newer."""


class WrongMaster(Invalid):
    """There is no such Spark master."""


class SparkFailed(Unavailable):
    """Spark started and then gave up, for a reason of its own."""


class SparkLost(SparkFailed):
    """The session has ended. PySpark starts one JVM per process, so a service ends, and is started again."""

    default_remedy = (
        "start this process again: its run continues; if that ends too, give it more: --conf spark.driver.memory=2g"
    )


IN_A_TASK = (
    "tasks use the keys of the process that planned them; a role, or a file of credentials, executors need themselves: "
    "spark.executorEnv.NAME sets a variable"
)


@contextmanager
def in_one_line(*, task: bool = False) -> Iterator[None]:
    """An error of ours as one line, which is found in whatever Spark prints around it."""
    try:
        yield
    except HoldfastError as error:
        remedies = [each for each in (error.remedy, IN_A_TASK if task and isinstance(error, Denied) else None) if each]
        hint = f" (hint: {'; '.join(remedies)})" if remedies else ""
        raise RuntimeError(f"{FAILED}{error.kind}: {error}{hint}".replace("\n", " ")) from None
