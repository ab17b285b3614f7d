"""`lumos serve`: the report live on this machine, with a what-if bench."""

import secrets
import socket
import sys
from typing import Annotated

import typer

from lumos.cli.output import Force, Json, Paths, Repair, write_json

#: The port where the user names none and this one is free.
PORT = 8471


def serve(
    paths: Paths,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Listen on this port (0: any free one).")] = None,
    mcp: Annotated[bool, typer.Option("--mcp", help="Answer an assistant instead: tools about the jobs below the folder PATH.")] = False,
    force: Force = False,
    repair: Repair = False,
    json: Json = False,
) -> None:
    """Explore the job in a browser on this machine: the parts of the report, and a bench that shows the effect of changes.

    The server listens on the loopback address only, and answers whom the printed address was given; Ctrl-C ends it.
    """
    from pathlib import Path

    from lumos.errors import LumosError
    from lumos.extras import install

    for path in paths:
        if not Path(path).exists():
            raise LumosError(f"{path}: no such file or folder; name a trace file, several, or a folder with one file per rank")
    if mcp:
        _tools(paths)
        return
    try:
        import uvicorn

        from lumos.serve.app import application
    except ImportError as error:
        raise LumosError(f"the explorer needs {error.name}, which is not installed: {install('serve')}") from error
    from lumos.serve.session import Session

    listener = listen(port)
    number = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    url = f"http://127.0.0.1:{number}/?token={token}"
    if json:
        write_json({"url": url})
        sys.stdout.flush()
    else:
        print(f"Lumos explorer: {url} (Ctrl-C ends it)", flush=True)
    server = uvicorn.Server(
        uvicorn.Config(application(Session(paths, repair=repair, force=force), number, token), log_level="warning", lifespan="off")
    )
    server.run(sockets=[listener])


def _tools(paths: list[str]) -> None:
    """Speak the Model Context Protocol on standard input and output, about the jobs below a folder."""
    from pathlib import Path

    from lumos.errors import LumosError, UsageError
    from lumos.extras import install

    if len(paths) != 1:
        raise UsageError("--mcp takes one folder, below which all jobs lie")
    try:
        from lumos.serve.mcp import server
    except ImportError as error:
        raise LumosError(f"the tools for assistants need {error.name}, which is not installed: {install('mcp')}") from error
    server(Path(paths[0])).run()


def listen(port: int | None) -> socket.socket:
    """A socket that listens on the loopback address, so that requests wait from now on until they are answered.

    Raises LumosError where the port that the user named is taken.
    """
    from lumos.errors import LumosError

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", PORT if port is None else port))
    except OSError as error:
        if port is not None:
            listener.close()
            raise LumosError(f"port {port} cannot be had ({error.strerror}); name another with --port, or 0 for any free one") from error
        listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener
