import contextlib

try:
    work()
except:  # FIRES
    raise

try:
    work()
except Exception:  # FIRES
    pass

try:
    work()
except (ValueError, BaseException):  # FIRES
    """Never mind."""

with contextlib.suppress(Exception):  # FIRES
    work()

try:
    work()
except ValueError:
    pass
except Exception as error:
    report(error)

with contextlib.suppress(FileNotFoundError):
    work()
