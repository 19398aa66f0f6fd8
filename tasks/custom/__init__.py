"""A user-defined stage: a Python function, outside of Baton's tree, that a recipe names in `stages`."""
