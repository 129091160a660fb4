"""Both ways to S3, for tests of what they have in common.

A proxy in the environment sends everything through obstore. Here the environment is a mapping that only our own code
looks at, so nobody goes through that proxy.
"""

DIRECT: dict[str, str] = {}
THROUGH_OBSTORE = {"ALL_PROXY": "http://a.proxy"}
BOTH = [DIRECT, THROUGH_OBSTORE]
IDS = ["direct", "obstore"]
