"""A plugin of SkyPilot's server that checks for a network on this machine, since the world has no other."""

from typing import Any

from sky.backends import backend_utils
from sky.server import plugins


class Reachable(plugins.BasePlugin):
    """Replace SkyPilot's network check with the address that world.py serves."""

    def install(self, extension_context: Any) -> None:
        backend_utils._TEST_IP_LIST[:] = ["http://127.0.0.1:46599/"]
