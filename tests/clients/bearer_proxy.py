"""A reverse proxy that adds a bearer token to every request.

The official MCP conformance suite takes a URL and nothing else, and spawnlet answers nobody without
a token. Everything but the Authorization header is handed on as it came, Host and Origin too, and
answers are handed on byte by byte as they come, so that event streams stream.

    bearer_proxy.py TARGET_HOST:PORT        token on standard input; prints the port it listens on
"""

import http.client
import http.server
import sys
import threading

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection"}


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target = ""
    token = ""

    def log_message(self, *_):
        pass

    def forward(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        upstream = http.client.HTTPConnection(self.target)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in HOP_BY_HOP | {"authorization"}:
                upstream.putheader(name, value)
        upstream.putheader("Authorization", f"Bearer {self.token}")
        upstream.endheaders(body)
        answer = upstream.getresponse()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # The client may hang up while nothing comes from the daemon: then the daemon is told too.
        watcher = threading.Thread(target=self.watch, args=(upstream,), daemon=True)
        watcher.start()
        try:
            while chunk := answer.read1(65536):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException, ValueError):
            self.close_connection = True
        finally:
            upstream.close()

    def watch(self, upstream):
        import select
        import socket

        try:
            while upstream.sock is not None:
                ready, _, _ = select.select([self.connection], [], [], 0.5)
                if ready and not self.connection.recv(1, socket.MSG_PEEK):
                    if upstream.sock is not None:
                        upstream.sock.shutdown(socket.SHUT_RDWR)
                    return
                if ready:
                    return
        except (OSError, ValueError):
            pass

    do_GET = do_POST = do_DELETE = do_PUT = do_OPTIONS = do_HEAD = forward


def main():
    Proxy.target = sys.argv[1]
    Proxy.token = sys.stdin.readline().strip()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
