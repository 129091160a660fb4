"""Whether a store does what Holdfast needs: the laws, an examination of a store, and the certificate it leaves."""
