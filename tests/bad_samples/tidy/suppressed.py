import contextlib
from contextlib import suppress

with contextlib.suppress(Exception):  # FIRES
    work()

with suppress(KeyError, BaseException):  # FIRES
    work()

with contextlib.suppress(FileNotFoundError):
    work()
