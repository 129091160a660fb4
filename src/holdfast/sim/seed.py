"""Where all randomness of a simulated world begins: one root seed, many streams that do not disturb each other.

A stream is named. Drawing more from one (another fault, a longer schedule) leaves what the others give unchanged, so a
scenario can be altered without becoming a different one.
"""

import random


class Seed:
    def __init__(self, root: int) -> None:
        self.root = root

    def stream(self, *name: str) -> random.Random:
        return random.Random("/".join((str(self.root), *name)))

    def __str__(self) -> str:
        return str(self.root)
