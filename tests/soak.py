"""Whether this is ``make soak``: what repeats itself in search of rare schedules does so longer then."""

import os

SOAKING = os.environ.get("HOLDFAST_HYPOTHESIS") == "soak"
