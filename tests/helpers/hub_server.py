"""A small Hugging Face hub on loopback: repositories of data sets and models, with commits, logins and stalls."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self):
        return self.server.hub

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.calls.append((self.command, path, self.headers.get("Range")))
        for pattern, answer in (
            (r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/revision/(.+))?", self.info),
            (r"/api/(?:datasets|models)/([^/]+/[^/]+)/tree/([^/]+)/?(.*)", self.tree),
            (r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.file),
        ):
            match = re.fullmatch(pattern, path)
            if match and match[1] in self.hub.repositories:
                name, revision, *rest = match.groups()
                if self.hub.gated.get(name) not in (None, self.headers.get("Authorization")):
                    return self.refused(401, "GatedRepo")
                return answer(*self.hub.at(name, revision), name, *rest)
        return self.refused(404, "RepoNotFound")

    def do_HEAD(self):
        self.do_GET()

    def info(self, commit, files, name):
        self.json({"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in files]})

    def tree(self, _commit, files, _name, folder):
        prefix = f"{folder}/" if folder else ""
        inside = [path for path in files if path.startswith(prefix)]
        if not inside:
            return self.refused(404, "EntryNotFound")
        if parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() != "true":
            below = {prefix + path.removeprefix(prefix).split("/")[0] for path in inside if "/" in path[len(prefix) :]}
            inside = [path for path in inside if "/" not in path[len(prefix) :]]
        else:
            below = {path.rpartition("/")[0] for path in inside} - {"", folder}
        folders = [{"type": "directory", "path": path, "oid": "0" * 40} for path in sorted(below)]
        return self.json(folders + [self.entry(path, files[path]) for path in inside])

    @staticmethod
    def entry(path, data):
        found = {"type": "file", "path": path, "size": len(data), "oid": digest(path, data)}
        if in_lfs(path):
            found |= {"oid": "0" * 40, "lfs": {"oid": digest(path, data), "size": len(data), "pointerSize": 130}}
        return found

    def file(self, commit, files, _name, path):
        if path not in files:
            return self.refused(404, "EntryNotFound")
        data = files[path]
        first = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(first[1]) if first else 0
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{digest(path, data)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if first:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return None
        if path in self.hub.stalled:
            self.hub.stalled.remove(path)
            self.hub.closed.wait()
        self.wfile.write(data[start:])
        return None

    def refused(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def json(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def in_lfs(path):
    return not path.endswith((".md", ".json", ".txt"))


def digest(path, data):
    """What a hub calls a file's content: its SHA-256 in Git LFS, else Git's name of the object."""
    return (
        hashlib.sha256(data).hexdigest() if in_lfs(path) else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    )


class Hub:
    """Repositories (name: {path: bytes}) served at ``url`` until ``close``; until then ``calls`` grows.

    A revision that is no commit of ``push`` is the newest commit.
    """

    def __init__(self, repositories):
        self.repositories = repositories
        self.commits = {}
        """(name, commit): its files; the newest ones are in ``repositories``."""
        self.newest = {}
        self.gated = {}
        """Name: the Authorization header without which its files are refused."""
        self.calls = []
        """(method, path, Range header) of each request."""
        self.stalled = set()
        """Paths whose next GET stands still, once, until the hub is closed."""
        self.closed = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.hub = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        # ``close`` waits for as long as the server sleeps between two looks at it.
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def push(self, name, files):
        """Add a commit with these files; return it."""
        # The client keeps lists of a commit's files by its address, which another server may have had before.
        content = [(path, hashlib.sha1(data).hexdigest()) for path, data in sorted(files.items())]
        commit = hashlib.sha1(f"{name} {len(self.commits)} {content}".encode()).hexdigest()
        self.repositories[name] = self.commits[name, commit] = files
        self.newest[name] = commit
        return commit

    def at(self, name, revision):
        """Return the commit that a revision means, and its files."""
        if (name, revision) in self.commits:
            return revision, self.commits[name, revision]
        is_commit = re.fullmatch("[0-9a-f]{40}", revision or "")
        return revision if is_commit else self.newest.get(name, COMMIT), self.repositories[name]

    def close(self):
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()
