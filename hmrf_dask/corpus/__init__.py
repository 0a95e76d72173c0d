"""A corpus: rows in partitions, from and to whatever holds rows."""
