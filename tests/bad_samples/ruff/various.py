"""One line for each family of rules that must be switched on; the code stands at the end of the line."""

import json  # F401
from . import sibling  # TID252
import subprocess
import typing


async def waits(path):
    open(path)  # ASYNC230


def default(items=[]):  # B006
    print(items)  # T201


def swallow():
    try:
        default()
    except Exception:  # BLE001
        return None


def half(number):
    assert number % 2 == 0  # S101
    try:
        return number // 2
    except:  # E722
        return 0


# TODO: later  # FIX002
private = subprocess.Popen("ls")._waitpid_lock  # SLF001
shell = subprocess.run("ls", shell=True)  # S602
listed = list([x for x in range(3)])  # C411
maybe: typing.Optional[int] = None  # UP045
