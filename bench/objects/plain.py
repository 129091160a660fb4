"""The least that a write to a folder takes which a power cut does not take back. No conditions."""

import os
from pathlib import Path


def write_durably(path: Path, body: bytes) -> None:
    """Written aside, forced to disk and renamed; then its name is, and the names of new folders are before."""
    aside = path.with_name(path.name + ".new")
    try:
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileNotFoundError:
        _make_folders(path.parent)
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(file, body)
        os.fsync(file)
    finally:
        os.close(file)
    aside.rename(path)
    _sync(path.parent)


def _make_folders(folder: Path) -> None:
    missing = [folder]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        _sync(each.parent)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
