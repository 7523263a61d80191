"""A small web server that can be told to misbehave."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves `files` by name, and keeps what it was asked for in `ranges`."""

    def __init__(self, files):
        self.files = dict(files)
        self.ranges = []
        self.knows_ranges = True
        self.breaks_after = []  # of the next answers: send only so many bytes
        self.tells_length = True
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self):
                answer(server, self)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/"


def answer(server, request):
    wanted = request.headers.get("Range")
    server.ranges.append(wanted)
    data = server.files.get(request.path.lstrip("/"))
    if data is None:
        return request.send_error(404)
    start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.knows_ranges else 0
    if start and start >= len(data):
        request.send_response(416)
        request.send_header("Content-Range", f"bytes */{len(data)}")
        return request.end_headers()
    request.send_response(206 if start else 200)
    if start:
        request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
    if server.tells_length:
        request.send_header("Content-Length", str(len(data) - start))
    request.end_headers()
    stop = server.breaks_after.pop(0) if server.breaks_after else len(data)
    request.wfile.write(data[start : start + stop])
    return None


@contextlib.contextmanager
def serving(files):
    server = Server(files)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()
