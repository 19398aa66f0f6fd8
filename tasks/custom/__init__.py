"""A stage of the user's own: a Python function, outside of Baton's tree, that a recipe names in `stages`."""
