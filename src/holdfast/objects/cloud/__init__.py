"""Cloud stores: ``s3://``, ``gs://`` and ``az://``, all through obstore, which is used nowhere else.

* ``store``        the port's verbs, one request each
* ``target``       which bucket, and with which options: frozen and picklable
* ``client``       from a target and its surroundings to an obstore client, every choice made explicit
* ``credentials``  where S3 keys come from
* ``versions``     what a version is: an ETag, or a generation on Google's store
* ``failure``      what obstore raised, read once; ``errors`` turns it into ours
* ``runtime``      obstore's threads: what they do to forks and to the end of the process
"""

from holdfast.objects.cloud.store import CloudStore
from holdfast.objects.cloud.target import CloudTarget

__all__ = ["CloudStore", "CloudTarget"]
