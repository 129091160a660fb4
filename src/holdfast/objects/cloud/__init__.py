"""Cloud stores: ``s3://``, ``gs://`` and ``az://``. obstore sends every request and is used in this package only.

* ``store``        the verbs of the port
* ``config``       from a store's address and the environment to an obstore client: server, region, identity
* ``credentials``  where S3 keys come from
* ``errors``       from an exception of obstore to an error of the port
* ``runtime``      obstore's threads: what they do to forks and to the end of the process
"""

from holdfast.objects.cloud.store import CloudStore

__all__ = ["CloudStore"]
