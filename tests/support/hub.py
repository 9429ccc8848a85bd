"""A local Hugging Face hub with one model at one commit."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def hub_of(folder, name):
    """Serve the hub during a block; yield its address."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.answer(True)

        def do_HEAD(self):
            self.answer(False)

        def answer(self, with_body):
            path = self.path.partition("?")[0].strip("/")
            if path in (
                f"api/models/{name}",
                f"api/models/{name}/revision/main",
                f"api/models/{name}/revision/{COMMIT}",
            ):
                self.say(200, self.model(), with_body)
            elif path == f"api/models/{name}/tree/{COMMIT}":
                self.say(200, [self.entry(file) for file in files], with_body)
            elif path.startswith(f"api/models/{name}/revision/"):
                self.say(404, {}, with_body, {"X-Error-Code": "RevisionNotFound"})
            elif path.startswith(f"{name}/resolve/{COMMIT}/") and path.rpartition("/")[2] in files:
                content = files[path.rpartition("/")[2]]
                etag = hashlib.sha1(content).hexdigest()
                self.say(200, content, with_body, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
            else:
                self.say(404, {}, with_body, {"X-Error-Code": "RepoNotFound"})

        def model(self):
            return {"id": name, "modelId": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}

        def entry(self, file):
            oid = hashlib.sha1(files[file]).hexdigest()
            return {"type": "file", "path": file, "size": len(files[file]), "oid": oid}

        def say(self, status, content, with_body, headers=None):
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
