"""Serve images of a model by any decoder, as OpenAI's API does.

    parity serve --model scenes --method sjd_coupled --port 8000

The endpoint of images is http://127.0.0.1:8000/v1/images/generations; /health and /metrics say how the server is. An
image is the one that `parity generate PROMPT --seed SEED` makes, whatever else is asked for meanwhile. Images that wait
join the batch where others end, if the method can do so. SIGTERM, or Ctrl-C, takes no new request and ends when all
that were taken are answered; Ctrl-C again ends at once.
"""

import argparse
import socket
import threading
from typing import Any

from parity.base.command import run_command
from parity.base.errors import ParityError
from parity.generate.arguments import add_decoding, load_generator, read_options


def bind(host: str, port: int) -> socket.socket:
    """Take a port, on which nobody listens until the server runs. Raises ParityError if it cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, proto)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        raise ParityError(f"--host {host} --port {port}: {error}; allowed: one of this machine that is free") from None
    return taken


def serve(app: Any, worker: Any, taken: socket.socket, announcement: str) -> None:
    """Serve until a signal comes and all that was asked for is answered."""
    import uvicorn

    class Server(uvicorn.Server):
        """Ends when the worker has."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(announcement, flush=True)

        def handle_exit(self, sig: int, frame: Any) -> None:
            """Let the worker end; at a second signal do not wait for it."""
            if worker.is_closed:
                self.should_exit = self.force_exit = True
            worker.close()

    server = Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none"))

    def work() -> None:
        worker.run()
        server.should_exit = True

    threading.Thread(target=work, daemon=True).start()
    server.run([taken])


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="parity serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_decoding(parser)
    parser.add_argument("--batch", type=int, default=8, help="decoded at once (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free (%(default)s)")
    parser.add_argument("--max-waiting", type=int, default=256, help="images that may wait for a place (%(default)s)")
    return parser


def main() -> None:
    """Check the arguments, load the model, and serve."""
    a = make_parser().parse_args()
    if a.max_waiting < 1:
        raise ParityError(f"--max-waiting {a.max_waiting}: allowed: 1 or more")
    if not 0 <= a.port < 1 << 16:
        raise ParityError(f"--port {a.port}: allowed: 0 to 65535")
    try:
        from parity.serve.app import Images, make_app
        from parity.serve.worker import Worker
    except ModuleNotFoundError as error:
        problem = f"the package `{error.name}` is not installed"
        raise ParityError(f"{problem}; allowed: the extra `serve`: uv run --extra serve parity serve ...") from None
    generator = load_generator(a)
    model = generator.case.model
    if generator.kind != "discrete":
        made = "writes texts" if generator.kind == "anysubset" else "draws vectors"
        raise ParityError(f"--model {model}: {made}; allowed: a model of image tokens")
    method, chosen = generator.choose_method(a.method, read_options(a.option))
    taken = bind(a.host, a.port)
    worker = Worker(generator, method, chosen, a.batch, a.max_waiting)
    host, port = taken.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    serve(make_app(Images(generator, method, chosen, worker)), worker, taken, f"{model} by {method}: {address}/v1")


if __name__ == "__main__":
    run_command(main)
