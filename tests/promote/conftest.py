"""A separate registry for each test that requests one."""

from tests.tracking.conftest import empty_store, home  # noqa: F401 - fixtures
