"""What the lineage pages show, as text in a terminal. No server is needed: the store's database is read directly."""
