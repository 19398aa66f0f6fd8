"""Options and settings of `pyflyte`'s commands."""

from types import SimpleNamespace
from typing import Any

import click

from baton.infra.errors import UserError


def registration() -> Any:
    """Return the options of `pyflyte register`, with the fields of RunLevelParams, if that command imports the caller,
    or None."""
    from flytekit.clis.sdk_in_container.constants import CTX_CONFIG_FILE
    from flytekit.clis.sdk_in_container.helpers import FLYTE_REMOTE_INSTANCE_KEY

    context = click.get_current_context(silent=True)
    if context is None or context.info_name != "register":
        return None
    options = context.params
    if options["version"] == "":  # the output of a failed command in its place
        raise UserError("--version is empty: run `baton version FILE` alone to see why")
    return SimpleNamespace(
        config_file=context.obj.get(CTX_CONFIG_FILE),
        image_config=options["image_config"],
        envvars=options["env"] or {},
        project=options["project"],
        domain=options["domain"],
        remote_instance=lambda: context.obj[FLYTE_REMOTE_INSTANCE_KEY],
    )


def run_options() -> set[str]:
    """Return the options of `pyflyte run` itself, such as --name."""
    from flytekit.clis.sdk_in_container.run import RunLevelParams

    return {name for option in RunLevelParams.options() for name in (*option.opts, *option.secondary_opts)}


def console(run: Any) -> str:
    """Return the address of Flyte's console, derived as in `pyflyte run`."""
    from flytekit.configuration import Config

    platform = Config.auto(run.config_file).platform
    scheme = "http" if platform.insecure else "https"
    return str(platform.console_endpoint or f"{scheme}://{platform.endpoint.removeprefix('dns:///')}")


def image_config(run: Any) -> Any:
    """Return the images by name (flytekit's ImageConfig) from the configuration and from `--image`."""
    from flytekit.clis.sdk_in_container.helpers import patch_image_config

    return patch_image_config(run.config_file, run.image_config)
