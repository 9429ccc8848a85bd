"""`whetstone view`: view runs in a browser, during and after training."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from whetstone import viewer
from whetstone.cli.server_options import access_log_option, bind_socket, load_api_keys, start_access_log
from whetstone.serving.http_server import build_server


@click.command("view")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--host", "address", default="127.0.0.1", show_default=True, help="Address on which the server listens.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--keys", type=click.Path(path_type=Path),
              help="File with API keys. Without it only requests from localhost are accepted.")  # fmt: skip
@click.option(
    "--allow-run-code",
    is_flag=True,
    help="Let the page import modules that a run's recipe names, to compute credit and demonstrations again.",
)
@click.option("--follow-symlinks", is_flag=True, help="Read files that a symbolic link of a run leads to.")  # fmt: skip
@access_log_option("off")
def view_command(
    runs: tuple[Path, ...],
    address: str,
    port: int,
    keys: Path | None,
    access_log: str,
    allow_run_code: bool,
    follow_symlinks: bool,
) -> None:
    """View RUNs in a browser: run directories, folders with runs, or the output of `whetstone compare`.

    The page shows curves, alerts, trajectories token by token, tools and the timeline, and is updated during a run.
    Nothing is written into a run.
    """
    known = load_api_keys(address, keys)
    start_access_log(access_log)
    opened = viewer.open_runs(runs, follow_symlinks=follow_symlinks)
    with bind_socket(address, port) as bound:
        viewer_app = viewer.Viewer(
            opened, keys=known, folders=runs, allow_run_code=allow_run_code, follow_symlinks=follow_symlinks
        )
        server = build_server(viewer.view_application(viewer_app))
        host, at = bound.getsockname()[:2]
        click.echo(f"{len(opened)} run{'s' * (len(opened) > 1)} at http://{f'[{host}]' if ':' in host else host}:{at}/")
        asyncio.run(server.serve(sockets=[bound]))
