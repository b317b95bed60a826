"""A small server of objects for tests: HTTP with ranges and conditions, and the additions of S3. It does not check
signatures."""

import hashlib
import http.server
import re
import threading
import urllib.parse
from xml.sax.saxutils import escape

DATE = "Mon, 02 Nov 2026 03:04:05 GMT"


class Server:
    """Objects by paths such as ``/bucket/key``, and the requests so far."""

    def __init__(self):
        self.objects = {}
        self.asked = []
        # The treatment of the next requests: a status, "short", or an event to wait for.
        self.acts = []
        self.has_etags = True
        # The parts of each upload that has not ended, by its id.
        self.uploads = {}
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def gets(self):
        """The GETs of objects since the last call."""
        asked, self.asked = self.asked, []
        return [path for method, path in asked if method == "GET"]


def etag_of(content):
    return f'"{hashlib.md5(content).hexdigest()}"'


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer consists of several writes.
    disable_nagle_algorithm = True
    owner: Server

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def act(self):
        """Treats this request as the test has chosen. True if that answers it."""
        self.owner.asked.append((self.command, self.path))
        if not self.owner.acts:
            return None
        act = self.owner.acts.pop(0)
        if isinstance(act, int):
            self.answer(act, b"<Error><Code>Test</Code><Message>no</Message></Error>")
            return True
        if act == "short":
            return act
        act.wait(60)
        return None

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        act = self.act()
        if act is True:
            return
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        if "list-type" in query:
            self.listing(url.path, query)
            return
        content = self.owner.objects.get(urllib.parse.unquote(url.path))
        if content is None:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        etag = etag_of(content)
        if self.headers.get("If-Match") not in (None, "*", etag):
            self.answer(412)
            return
        headers = [("Last-Modified", DATE), ("Accept-Ranges", "bytes")]
        if self.owner.has_etags:
            headers.append(("ETag", etag))
        if self.headers.get("If-None-Match") == etag:
            self.answer(304, headers=headers)
            return
        if self.command == "HEAD":
            self.send_response(200)
            for name, value in [*headers, ("Content-Length", str(len(content)))]:
                self.send_header(name, value)
            self.end_headers()
            return
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        status, body = 200, content
        if asked:
            first, last = asked.groups()
            start = int(first) if first else max(0, len(content) - int(last))
            end = min(len(content), int(last) + 1) if first and last else len(content)
            if start >= len(content):
                self.answer(416)
                return
            status, body = 206, content[start:end]
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{len(content)}"))
        if act == "short":
            self.send_response(status)
            for name, value in [*headers, ("Content-Length", str(len(body)))]:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        self.answer(status, body, headers)

    def listing(self, bucket, query):
        bucket = bucket.strip("/")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("continuation-token") or query.get("start-after") or ""
        entries, prefixes = [], []
        for path in sorted(self.owner.objects):
            name = path.removeprefix(f"/{bucket}/")
            if name == path or not name.startswith(prefix) or name <= after:
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                common = prefix + rest.split(delimiter)[0] + delimiter
                if common not in prefixes:
                    prefixes.append(common)
                continue
            entries.append(name)
        said = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-02T03:04:05.000Z</LastModified>"
            f"<ETag>{escape(etag_of(self.owner.objects[f'/{bucket}/{name}']))}</ETag>"
            f"<Size>{len(self.owner.objects[f'/{bucket}/{name}'])}</Size></Contents>"
            for name in entries
        )
        said += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in prefixes)
        self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{said}</ListBucketResult>".encode())

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def query(self):
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query, keep_blank_values=True))

    def do_PUT(self):
        body = self.body()
        if self.act() is True:
            return
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        query = self.query()
        if "partNumber" in query:
            parts = self.owner.uploads.get(query["uploadId"])
            if parts is None:
                self.answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
                return
            parts[int(query["partNumber"])] = body
            self.answer(200, headers=[("ETag", etag_of(body))])
            return
        known = self.owner.objects.get(path)
        if self.headers.get("If-None-Match") == "*" and known is not None:
            self.answer(412)
            return
        if self.headers.get("If-Match") not in (None, etag_of(known) if known is not None else None):
            self.answer(412)
            return
        source = self.headers.get("x-amz-copy-source")
        if source is not None:
            source = urllib.parse.unquote("/" + source.lstrip("/"))
            if source not in self.owner.objects:
                self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            self.owner.objects[path] = self.owner.objects[source]
            self.answer(200, b"<CopyObjectResult><ETag>x</ETag></CopyObjectResult>")
            return
        self.owner.objects[path] = body
        self.answer(200, headers=[("ETag", etag_of(body))])

    def do_POST(self):
        body = self.body()
        if self.act() is True:
            return
        query = self.query()
        if "uploads" in query:
            upload = f"upload{len(self.owner.asked)}"
            self.owner.uploads[upload] = {}
            self.answer(200, f"<R><UploadId>{upload}</UploadId></R>".encode())
            return
        if "uploadId" in query:
            parts = self.owner.uploads.pop(query["uploadId"])
            content = b"".join(parts[number] for number in sorted(parts))
            self.owner.objects[urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)] = content
            self.answer(200, f"<R><ETag>{escape(etag_of(content))}</ETag></R>".encode())
            return
        bucket = urllib.parse.urlsplit(self.path).path.strip("/")
        keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
        for key in keys:
            self.owner.objects.pop(f"/{bucket}/{urllib.parse.unquote(key)}", None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def do_DELETE(self):
        self.body()
        if self.act() is True:
            return
        if "uploadId" in self.query():
            self.owner.uploads.pop(self.query()["uploadId"])
            self.answer(204)
            return
        self.owner.objects.pop(urllib.parse.unquote(urllib.parse.urlsplit(self.path).path), None)
        self.answer(204)
