"""Whether this is ``make soak``: what repeats itself in search of rare schedules does so longer then."""

import os

from hypothesis import settings

SOAKING = os.environ.get("HOLDFAST_HYPOTHESIS") == "soak"


def examples(number: int) -> settings:
    """For a property whose examples are slower, or need to be more, than those of most."""
    return settings(max_examples=number * 50 if SOAKING else number)
