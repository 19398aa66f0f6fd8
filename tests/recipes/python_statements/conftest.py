"""The example's files import each other as a user's do: from the folder that they are in."""

import sys

from tests.source import ROOT

sys.path.insert(0, str(ROOT / "workflows/recipes/python_statements"))
