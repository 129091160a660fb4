"""What keeps Spark from starting, each in one clear line. All are for the operator: nothing has been written."""

from holdfast.base.errors import Invalid, Unavailable


class NoSpark(Invalid):
    """The extra that brings PySpark is not installed."""


class NoJava(Invalid):
    """Spark on this machine needs Java 17 or newer."""


class WrongMaster(Invalid):
    """There is no such Spark master."""


class SparkFailed(Unavailable):
    """Spark started and then gave up, for a reason of its own."""
