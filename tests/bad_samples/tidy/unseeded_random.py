import random
from random import Random

a = random.Random()  # FIRES
b = Random()  # FIRES

seeded = random.Random(7)
