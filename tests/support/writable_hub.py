"""A local Hugging Face hub that accepts repositories and commits, with tokens of different rights."""

import base64
import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKENS = {"hf_writer": "write", "hf_reader": "read", "hf_fine": "fineGrained", "hf_broken": "write"}
"""Token → role; `hf_fine` is refused by every write, `hf_broken` by commits with an internal error."""
LARGE = 2_000
"""Files of this size in bytes or more are uploaded as large files."""


class Repository:
    """Files of one repository, and its commits."""

    def __init__(self, private):
        self.private, self.files, self.commits = private, {}, []

    @property
    def commit(self):
        """The last commit."""
        return self.commits[-1] if self.commits else "0" * 40


class WritableHub:
    """State of the hub: repositories by (kind, name), uploaded large files, and requests."""

    def __init__(self):
        self.repositories, self.large, self.requests, self.address = {}, {}, [], ""

    def answer(self, method, path, body, token):
        """Return (status, body, headers) of a request."""
        role = TOKENS.get(token)
        self.requests.append((method, path))
        if path == "/api/whoami-v2":
            user = {"name": "tester", "type": "user", "auth": {"accessToken": {"role": role}}}
            return (200, user, {}) if role else (401, {"error": "Invalid user token"}, {})
        if method in ("POST", "PUT") and path != "/api/validate-yaml" and not path.startswith("/large/"):
            if role is None:
                return 401, {"error": "Invalid user token"}, {}
            if role != "write":
                return 403, {"error": "Forbidden: the token has no write rights"}, {}
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            header = json.loads(body)["content"].split("---")[1]
            bad = "license: not-known" in header
            return 400 if bad else 200, {"errors": [{"message": "license"}] if bad else [], "warnings": []}, {}
        if path.startswith("/large/"):
            if method == "PUT":
                self.large[path.rpartition("/")[2]] = body
            return 200, {}, {}
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            objects = json.loads(body)["objects"]
            return 200, {"transfer": "basic", "objects": [self.offer(each) for each in objects]}, {}
        if match := re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/(.*))?", path):
            kind, name, rest = match.groups()
            repository = self.repositories.get((kind, name))
            if repository is None or (repository.private and role is None):
                return 404, {"error": "Repository not match"}, {"X-Error-Code": "RepoNotFound"}
            return self.of_repository(repository, name, rest or "", body, token)
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            kind, name, _, file = match.groups()
            repository = self.repositories.get(("dataset" if kind else "model", name))
            if repository is None or file not in repository.files:
                return 404, {}, {"X-Error-Code": "RepoNotFound" if repository is None else "EntryNotFound"}
            content = repository.files[file]
            etag = hashlib.sha256(content).hexdigest()
            return 200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": repository.commit}
        return 404, {}, {}

    def create(self, wanted):
        """Create a repository."""
        name = f"{wanted.get('organization', 'tester')}/{wanted['name']}"
        kind = wanted.get("type", "model")
        private = wanted.get("private", wanted.get("visibility") == "private")
        if name.partition("/")[0] != "tester":
            return 403, {"error": "Forbidden: you cannot create a repository there"}, {}
        self.repositories[kind, name] = Repository(private)
        return 200, {"url": f"{self.address}/{name}"}, {}

    def offer(self, each):
        """Return the address for a large file."""
        return {**each, "actions": {"upload": {"href": f"{self.address}/large/{each['oid']}"}}}

    def of_repository(self, repository, name, rest, body, token):
        """Answer a request about one repository."""
        if rest.startswith("preupload/"):
            rows = [
                {"path": each["path"], "uploadMode": "lfs" if each["size"] >= LARGE else "regular",
                 "shouldIgnore": False, "oid": None}
                for each in json.loads(body)["files"]
            ]  # fmt: skip
            return 200, {"files": rows}, {}
        if rest.startswith("commit/"):
            if token == "hf_broken":
                return 500, {"error": "Internal error of the hub"}, {}
            return self.commit(repository, name, body)
        if rest == "" or rest.startswith("revision/"):
            known = {"", "main", *repository.commits}
            if rest.removeprefix("revision/") not in known:
                return 404, {}, {"X-Error-Code": "RevisionNotFound"}
            siblings = [{"rfilename": file} for file in repository.files]
            info = {"id": name, "modelId": name, "sha": repository.commit, "private": repository.private}
            return 200, {**info, "tags": [], "siblings": siblings}, {}
        if rest.startswith("tree/"):
            return 200, [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in repository.files.items()
            ], {}  # fmt: skip
        return 404, {}, {}

    def commit(self, repository, name, body):
        """Apply the lines of a commit."""
        files = dict(repository.files)
        for line in body.decode().splitlines():
            row = json.loads(line)
            value = row["value"]
            if row["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "lfsFile":
                files[value["path"]] = self.large[value["oid"]]
            elif row["key"] == "deletedFile":
                del files[value["path"]]
        repository.files = files
        content = b"".join(path.encode() + content for path, content in sorted(files.items()))
        repository.commits.append(hashlib.sha1(content + bytes(len(repository.commits))).hexdigest())
        url = f"{self.address}/{name}/commit/{repository.commit}"
        return 200, {"success": True, "commitUrl": url, "commitOid": repository.commit}, {}


@contextlib.contextmanager
def run_hub():
    """Serve a hub without repositories during a block; yield its state."""
    hub = WritableHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def handle_request(self):
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while length := int(self.rfile.readline().strip() or b"0", 16):
                    body += self.rfile.read(length)
                    self.rfile.readline()
                self.rfile.readline()
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            status, content, headers = hub.answer(self.command, unquote(urlsplit(self.path).path), body, token)
            answer = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for key, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_HEAD = do_POST = do_PUT = handle_request

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
