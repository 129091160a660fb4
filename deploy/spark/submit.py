"""Entry file for spark-submit: the command line of Holdfast in the session that spark-submit makes.

spark-submit [OPTIONS] submit.py --store s3://bucket/prefix pipeline run --every 60s
"""

import sys

from holdfast.cli.main import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
