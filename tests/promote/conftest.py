"""A registry of its own for each test that asks for one."""

from tests.tracking.conftest import empty_store, home  # noqa: F401 - fixtures
