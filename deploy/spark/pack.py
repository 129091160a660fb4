"""Pack Holdfast and what it needs into one zip, for executors whose own Python has none of it.

python pack.py holdfast-env.zip

Run it with the Python of an environment that has ``holdfast[spark]``, on the platform and with the minor version of
Python that the executors have. Then give Spark ``--archives holdfast-env.zip#holdfast_env`` and
``--conf spark.executorEnv.PYTHONPATH=holdfast_env``. PySpark is left out: executors have that of their own Spark.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

ROOT, EXTRAS = "holdfast", frozenset({"spark"})
LEFT_OUT = {"pyspark", "py4j"}
PACKAGES = ("holdfast", "pyspark_holdfast")
_NAME = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def needed(name: str, extras: frozenset[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The installed distributions that one needs. What its markers leave out is not installed."""
    if name in LEFT_OUT or name in found:
        return found
    try:
        found[name] = distribution(name)
    except PackageNotFoundError:
        return found
    for requirement in found[name].requires or ():
        extra = _EXTRA.search(requirement)
        parts = _NAME.match(requirement)
        if parts is not None and (extra is None or extra[1] in extras):
            wanted = frozenset(each.strip() for each in (parts[2] or "").split(",") if each.strip())
            needed(re.sub(r"[-_.]+", "-", parts[1]).lower(), wanted, found)
    return found


def files_of(found: Distribution) -> Iterator[tuple[Path, str]]:
    for file in found.files or ():
        if ".." not in file.parts and file.suffix not in (".pyc", ".pth"):
            yield Path(str(file.locate())), str(file)


def own_files() -> Iterator[tuple[Path, str]]:
    """Holdfast itself, which may be installed from a checkout."""
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in map(Path, spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    yield path, f"{package}/{path.relative_to(folder).as_posix()}"


def main(target: str) -> None:
    found = needed(ROOT, EXTRAS, {})
    with ZipFile(target, "w", ZIP_STORED) as archive:
        seen: set[str] = set()
        for path, name in [*own_files(), *(pair for each in found.values() for pair in files_of(each))]:
            if name not in seen and path.is_file():
                seen.add(name)
                archive.write(path, name)
    sys.stdout.write(f"{target}: {len(seen)} files of {', '.join(sorted(found))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
