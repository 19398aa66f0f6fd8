"""Serve Baton's lineage pages and MLflow's UI on one port (make ui).

Baton's pages are read-only, but MLflow's write API is on the same port, and artifacts can be downloaded: whoever
reaches the port can do both. `--without-mlflow` serves Baton's pages alone.
"""

import os
import warnings

import click

from baton.infra.tracking.__main__ import close_ended_executions, deliver, undelivered
from baton.infra.tracking.store import artifact_location, prepare_client, shown_uri, tracking_uri

LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")  # the last as requests name it


@click.command(help=__doc__)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=5000, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--store", help="MLflow's database, sqlite:///… or postgresql://…; default: the tracking store.")
@click.option("--without-mlflow", is_flag=True, help="Serve only Baton's pages; a database user with SELECT is enough.")
def main(host: str, port: int, store: str | None, without_mlflow: bool) -> None:
    if store:
        os.environ["MLFLOW_TRACKING_URI"] = store
    prepare_client()
    warnings.filterwarnings("ignore", module="mlflow")  # warns about its own use of Starlette
    if not store and not without_mlflow:
        try:
            if waiting := undelivered():
                click.echo(f"uploading {len(waiting)} executions from the spool", err=True)
                deliver(waiting)
            close_ended_executions()
        except click.ClickException as error:  # the store can be read all the same
            click.echo(str(error), err=True)
    import uvicorn

    from baton.infra.lineage.app import alone, with_mlflow
    from baton.infra.lineage.database import open_database
    from baton.infra.lineage.pages import MOUNT

    open_database().dispose()  # fails before MLflow's imports, which take seconds
    if not without_mlflow:
        os.environ["_MLFLOW_SERVER_FILE_STORE"] = tracking_uri()
        os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = artifact_location() or "mlflow-artifacts:/"
        os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    # against DNS rebinding; MLflow's server checks hosts itself
    hosts = LOCAL if host in LOCAL else ("*",)
    app = alone(hosts=hosts) if without_mlflow else with_mlflow()
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    click.echo(f"store    {shown_uri()}\nlineage  {address}{MOUNT}/", err=True)
    if not without_mlflow:
        click.echo(f"mlflow   {address}/", err=True)
    uvicorn.run(app, host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main()
