"""Rows of documents: the block type, document ids, and the form all input is brought into."""
