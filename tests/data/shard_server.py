"""A web server in a thread, with files that come whole, cut short, late or not at all."""

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class ShardServer:
    """What it serves.

    Attributes:
        address: "http://127.0.0.1:PORT".
        files: path -> content.
        answers: path -> statuses of the next answers, before the file is given.
        cut: path -> bytes after which the connection ends, next times.
        silent: paths that are answered with nothing at all.
        slow: path -> seconds before each byte.
        asked: paths of all requests.
        bodies: paths whose body was read to its end.
        without_size: whether sizes are kept back.
        moved: path -> where it is.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    without_size: bool = False
    moved: dict[str, str] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving() -> Iterator[ShardServer]:
    """A server for the time of a block."""
    about = ShardServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            about.asked.append(path)
            if path in about.silent:
                about.over.wait(60)
                return
            if path in about.moved:
                self.send_response(302)
                self.send_header("Location", about.moved[path])
                self.end_headers()
                return
            status = about.answers[path].pop(0) if about.answers.get(path) else 200
            content = about.files.get(path)
            if status != 200 or content is None:
                self.send_error(status if status != 200 else 404)
                return
            self.send_response(200)
            if not about.without_size:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            until = about.cut[path].pop(0) if about.cut.get(path) else len(content)
            try:
                if path in about.slow:
                    for byte in content[:until]:
                        self.wfile.write(bytes([byte]))
                        self.wfile.flush()
                        time.sleep(about.slow[path])
                else:
                    self.wfile.write(content[:until])
                    self.wfile.flush()
            except OSError:
                return  # hung up on: its size was all that was asked for
            about.bodies.append(path)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    about.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield about
    finally:
        about.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
