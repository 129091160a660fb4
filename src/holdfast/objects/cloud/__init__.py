"""Cloud stores: ``s3://``, ``gs://`` and ``az://``. obstore is used here and nowhere else.

* ``store``        the port's verbs, one request each
* ``client``       from a store's address and its surroundings to a client, every choice made explicit
* ``verbs``        what clients do with one object; ``direct`` does it over HTTP by itself, ``sdk`` through obstore
* ``http1``        a connection, ``pool`` those to one server, ``sigv4`` signatures
* ``credentials``  where S3 keys come from
* ``versions``     what a version is: an ETag, or a generation on Google's store
* ``failure``      what a client raised, read once; ``errors`` turns it into ours
* ``runtime``      obstore's threads: what they do to forks and to the end of the process
"""

from holdfast.objects.cloud.store import CloudStore

__all__ = ["CloudStore"]
