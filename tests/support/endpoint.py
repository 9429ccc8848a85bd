"""An OpenAI-compatible server in a thread with scripted responses."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """`script` is a function of (number of the request, its body); it returns a text, a status, or a delay in
    seconds."""

    def __init__(self, script):
        self.script, self.bodies, self.headers, self.at_once, self.most_at_once = script, [], [], 0, 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer._lock:
                    number = len(outer.bodies)
                    outer.bodies.append(body)
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                reply = outer.script(number, body)
                if isinstance(reply, float):
                    time.sleep(reply)
                    reply = ""
                status, more = 200, {}
                if isinstance(reply, tuple):
                    reply, more = reply
                if isinstance(reply, int):
                    status, written = reply, b'{"error": "no"}'
                elif isinstance(reply, bytes):
                    written = reply
                else:
                    message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
                    usage = {"prompt_tokens": 10, "completion_tokens": 2}
                    answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
                    written = json.dumps(answer).encode()
                with outer._lock:
                    outer.at_once -= 1
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(written)))
                self.end_headers()
                self.wfile.write(written)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"


@contextmanager
def served(script):
    """Serve during a block."""
    server = Server(script)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
