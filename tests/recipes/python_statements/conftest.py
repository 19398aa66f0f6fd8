"""The example's files import each other as a user's do, from their own folder."""

import sys

from tests.source import ROOT

sys.path.insert(0, str(ROOT / "workflows/recipes/python_statements"))
