"""Read the documents of one file format each."""
