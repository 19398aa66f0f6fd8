"""Pickle a checkpoint's `.metadata` to the same bytes under every Python, since its digest names the checkpoint."""

import pickle
from enum import Enum
from typing import Any


class MetadataPickler(pickle.Pickler):
    """Writes a member of an enumeration by its value, as most versions of Python do. 3.11.0 to 3.11.3, Debian 12's
    among them, write getattr(class, name); can be replaced by its base when none of these is supported."""

    def reducer_override(self, value: Any) -> Any:
        return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented
