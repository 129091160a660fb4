# ruff: noqa: F401  # FIRES
# mypy: ignore-errors  # FIRES
import os  # noqa: F401  # FIRES
value = int("7")  # type: ignore[arg-type]  # FIRES

import sys  # noqa: F401  # kept for those who import it from here
other = int("7")  # type: ignore[arg-type]  # the published types are wrong
