#!/usr/bin/env python3
"""stub_model.py - a scripted fake LLM server for testing AI coding agents offline.

One process, Python standard library only, listening on 127.0.0.1.  It speaks
enough of four model APIs that unmodified coding agents can use it as their
model provider:

  OpenAI chat completions   POST [/v1]/chat/completions      (JSON and SSE)
  OpenAI responses          POST [/v1]/responses             (JSON and SSE)
  Anthropic messages        POST [/v1]/messages              (JSON and SSE)
                            POST [/v1]/messages/count_tokens
  Google Gemini             POST /v1beta/models/M:generateContent
                            POST /v1beta/models/M:streamGenerateContent[?alt=sse]
                            POST /v1beta/models/M:countTokens, :embedContent
  model lists               GET  [/v1]/models, /v1beta/models

The "model" is a script interpreter.  By default it answers

      STUB: <last user text>

and the user text may hold directives in double square brackets:

  [[tool:write PATH TEXT]]  call the agent's file-writing tool
  [[tool:read PATH]]        call the agent's file-reading tool
  [[tool:bash COMMAND]]     call the agent's shell tool, asking for approval where the tool has a parameter for it
  [[tool:run COMMAND]]      the same, never asking
  [[tool:call NAME {json}]] call the tool whose name is (or ends in) NAME with exactly these arguments
  [[also:...]]              like tool:, but in the same model turn as the tool before it (parallel calls)
  [[think:TEXT]]            stream TEXT as reasoning before anything else
  [[slow:N]]                stream the text in small pieces over N seconds (N may be a decimal)
  [[wait:N]]                send the headers, then nothing for N seconds, then go on
  [[hang]]                  send the headers, then nothing until the client hangs up
  [[hang:K]]                the same, but only the first K times that such a request comes, whatever its text
  [[stall]]                 send half of the text, then nothing until the client hangs up
  [[drop]]                  send half of the text, then close the connection
  [[error:CODE]]            answer with HTTP status CODE, each time
  [[error:CODE:K]]          answer with HTTP status CODE the first K times, then go on
  [[big:N]]                 N bytes of filler text
  [[say:TEXT]]              answer TEXT instead of the echo
  [[recall]]                answer with what the user said before, as the request shows it (JSON list)
  [[empty]]                 an answer without any text
  [[length]]                finish with the API's "token limit reached" reason
  [[refuse]]                finish with the API's refusal / safety reason

(JSON arguments must not hold "]]": write "] ]".)

Directives are worked through from left to right.  Each `tool:` ends a model
turn: what stands before it belongs to that turn, what stands behind it to the
turn that follows the tool's result.  So "[[tool:bash ls]][[slow:5]]" calls the
shell at once and then talks for five seconds.  A turn's number is found by
counting the tool-call turns after the last user text in the request, so the
server holds no conversation state and any number of agents can share it.

The final answer quotes the tool results: "STUB: hello | results: [...]".

Requests that declare no tools (titles, summaries, routing classifiers) are
auxiliary: directives in them are ignored and they get a short plain answer, or
the smallest JSON that fits the requested schema.

For tests:
  GET  /_stub/health     {"ok": true}
  GET  /_stub/log        the last 1000 requests (API, model, turn, tools, outcome, whether the client hung up);
                         a request that is being answered is there with the outcome "running"
  POST /_stub/reset      forget the log and the counters of [[error:CODE:K]]

Run:  python3 stub_model.py [--port 8399] [--port-file F] [--log F.jsonl] [--follow] [--dump DIR] [--prefix 'STUB: ']
      Port 0 picks a free one.  The first line on stdout is "listening on http://127.0.0.1:PORT".
Test: python3 stub_model.py --selftest
"""

import argparse
import gzip
import itertools

import argparse
import gzip
import itertools
import json
import os
import re
import select
import socket
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stub_openai import OpenAi
from stub_other import Anthropic, Gemini
from stub_script import Model, filler, split_turns

# --------------------------------------------------------------------------
# HTTP
# --------------------------------------------------------------------------

class ClientGone(Exception):
    pass


ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
               404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
               529: "overloaded_error"}
GOOGLE_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
                 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}


class Handler(OpenAi, Anthropic, Gemini, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "stub-model/1"

    def log_message(self, fmt, *args):
        pass

    # ---- plumbing --------------------------------------------------------

    def gone(self):
        """Has the client closed its side?"""
        try:
            ready, _, _ = select.select([self.connection], [], [], 0)
            return bool(ready) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def pause(self, seconds):
        """Sleep, but notice it when the client hangs up.  None: for ever."""
        end = None if seconds is None else time.monotonic() + seconds
        while end is None or time.monotonic() < end:
            if self.gone():
                raise ClientGone()
            if self.server.stopping.is_set():
                raise ClientGone()
            left = 0.05 if end is None else min(0.05, max(0.0, end - time.monotonic()))
            time.sleep(left)

    def send_json(self, obj, status=200, headers=()):
        body = json.dumps(obj).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for k, v in headers:
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(body)

    def start_stream(self, ctype="text/event-stream"):
        self.send_response(200)
        self.send_header("Content-Type", ctype)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data):
        if isinstance(data, str):
            data = data.encode()
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        except OSError:
            raise ClientGone()

    def sse(self, obj, event=None):
        self.chunk(("event: %s\n" % event if event else "") + "data: %s\n\n" %
                   (obj if isinstance(obj, str) else json.dumps(obj)))

    def end_stream(self):
        try:
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        except OSError:
            raise ClientGone()

    def pieces(self, t):
        """The text in pieces, at the pace that the script asks for.  May hang or raise."""
        text = t.text
        if t.stall or t.drop:
            half = text[: max(1, len(text) // 2)]
            yield half
            if t.stall:
                self.pause(None)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            raise ClientGone()
        if not text:
            return
        if t.slow:
            n = max(2, int(t.slow * 5))
            size = max(1, -(-len(text) // n))
            parts = [text[i:i + size] for i in range(0, len(text), size)]
            parts += ["."] * (n - len(parts))
            for p in parts:
                yield p
                self.pause(t.slow / n)
        else:
            for i in range(0, len(text), 4096):
                yield text[i:i + 4096]

    # ---- dispatch --------------------------------------------------------

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path.rstrip("/")
        if path == "/_stub/health":
            return self.send_json({"ok": True})
        if path == "/_stub/log":
            return self.send_json(list(self.server.model.log))
        if path == "/v1beta/models":
            return self.send_json({"models": [{"name": "models/" + m, "displayName": m, "inputTokenLimit": 1000000,
                                               "outputTokenLimit": 8192, "supportedGenerationMethods":
                                               ["generateContent", "countTokens"]} for m in self.server.models]})
        if path.endswith("/models"):
            return self.send_json({"object": "list", "has_more": False, "data": [
                {"id": m, "object": "model", "type": "model", "display_name": m, "created": 1, "owned_by": "stub"}
                for m in self.server.models]})
        if "/models/" in path:
            m = path.rsplit("/", 1)[1]
            return self.send_json({"id": m, "object": "model", "type": "model", "display_name": m, "created": 1,
                                   "owned_by": "stub"})
        self.note({"other": "GET " + self.path})
        self.send_json({"error": {"message": "stub: no such path " + path}}, 404)

    do_HEAD = do_GET

    def do_POST(self):
        path = urllib.parse.urlsplit(self.path).path.rstrip("/")
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            raw = b""
            while True:
                size = int(self.rfile.readline().split(b";")[0], 16)
                part = self.rfile.read(size)
                self.rfile.readline()
                if not size:
                    break
                raw += part
        else:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            self.note({"other": "POST " + self.path, "bad": raw[:200].decode("latin1")})
            return self.send_json({"error": {"message": "stub: body is not JSON"}}, 400)
        if self.server.dump:
            name = "%06d%s.json" % (next(self.server.dump_ids), path.replace("/", "_"))
            with open(os.path.join(self.server.dump, name), "w") as f:
                json.dump(body, f, indent=1)
        if path == "/_stub/reset":
            self.server.model.reset()
            return self.send_json({"ok": True})
        if path.endswith("/count_tokens"):
            return self.send_json({"input_tokens": len(raw) // 4})
        if path.endswith(":countTokens"):
            return self.send_json({"totalTokens": len(raw) // 4})
        if path.endswith(":embedContent"):
            return self.send_json({"embedding": {"values": [0.0] * 8}})
        if path.endswith("/chat/completions"):
            return self.serve(self.parse_chat(body), self.chat_stream, self.chat_json)
        if path.endswith("/responses"):
            return self.serve(self.parse_responses(body), self.responses_stream, self.responses_json)
        if path.endswith("/messages"):
            return self.serve(self.parse_anthropic(body), self.anthropic_stream, self.anthropic_json)
        m = re.search(r"/models/([^/:]+):(generateContent|streamGenerateContent)$", path)
        if m:
            req = self.parse_gemini(body, m.group(1), m.group(2) == "streamGenerateContent")
            return self.serve(req, self.gemini_stream, self.gemini_json)
        self.note({"other": "POST " + self.path, "body": raw[:300].decode("utf8", "replace")})
        self.send_json({"error": {"message": "stub: no such path " + path}}, 404)

    def note(self, entry, at_end=True):
        if "at" not in entry:
            entry["at"] = round(time.time(), 3)
            self.server.model.log.append(entry)
        if self.server.follow:
            with self.server.model.lock:
                print(json.dumps(entry), flush=True)
        if not at_end:
            return
        if self.server.log_file:
            with self.server.model.lock, open(self.server.log_file, "a") as f:
                f.write(json.dumps(entry) + "\n")

    def serve(self, req, stream, plain):
        t, number, what = self.server.model.decide(req)
        begun = time.monotonic()
        entry = {"api": req.api, "model": req.model, "stream": req.stream, "what": what,
                 "user": req.script()[0][-200:], "tools": len(req.tools), "messages": len(req.messages),
                 "answer": t.summary(), "agent": self.headers.get("User-Agent", "")[:60], "outcome": "running"}
        self.note(entry, at_end=False)
        outcome = "ok"
        try:
            if t.error:
                outcome = "http %d" % t.error
                return self.send_error_body(req.api, t.error)
            if t.wait and not req.stream:
                self.pause(t.wait)
            if t.hang and not req.stream:
                self.pause(None)
            if req.stream:
                stream(req, t)
            else:
                t.text = "".join(self.pieces(t))
                plain(req, t)
        except ClientGone:
            outcome = "client hung up"
            self.close_connection = True
        except OSError as e:
            outcome = "socket error: %s" % e
            self.close_connection = True
        finally:
            entry["seconds"] = round(time.monotonic() - begun, 3)
            entry["outcome"] = outcome
            self.note(entry)

    def send_error_body(self, api, code):
        text = "stub error %d" % code
        if api == "gemini":
            return self.send_json({"error": {"code": code, "message": text,
                                             "status": GOOGLE_STATUS.get(code, "INTERNAL")}}, code)
        kind = ERROR_TYPES.get(code, "api_error")
        if api == "anthropic":
            return self.send_json({"type": "error", "error": {"type": kind, "message": text}}, code)
        self.send_json({"error": {"message": text, "type": kind, "code": str(code), "param": None}}, code)

    def before_body(self, t):
        """Silences that come after the headers and before the first event."""
        if t.wait:
            self.pause(t.wait)
        if t.hang:
            self.pause(None)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass                                # clients that hang up are part of the game


def make_server(port=0, prefix="STUB: ", log_file=None, dump=None, models=("stub-model", "stub-model-2")):
    """Build a server (not yet serving).  For use from Python tests: threading.Thread(target=s.serve_forever)."""
    s = Server(("127.0.0.1", port), Handler)
    s.model, s.log_file, s.dump, s.models = Model(prefix), log_file, dump, list(models)
    s.follow = False
    s.stopping, s.dump_ids = threading.Event(), itertools.count(1)
    if dump:
        os.makedirs(dump, exist_ok=True)
    return s


# --------------------------------------------------------------------------
# Self-test
# --------------------------------------------------------------------------

def selftest():
    import urllib.error
    import urllib.request
    s = make_server()
    threading.Thread(target=s.serve_forever, daemon=True).start()
    base = "http://127.0.0.1:%d" % s.server_address[1]

    def post(path, body, timeout=10):
        r = urllib.request.Request(base + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(r, timeout=timeout) as f:
            return f.read().decode()
    fn = {"name": "write_file", "parameters": {"type": "object", "required": ["file_path", "content", "why"],
          "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}, "why": {"type": "string"}}}}
    prompt = "hi [[tool:write a.txt some text]] there"
    bodies = {
        "/v1/chat/completions": lambda p: {"model": "m", "messages": [{"role": "user", "content": p}],
                                           "tools": [{"type": "function", "function": fn}]},
        "/v1/responses": lambda p: {"model": "m", "input": [{"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": p}]}], "tools": [dict(fn, type="function")]},
        "/v1/messages": lambda p: {"model": "m", "messages": [{"role": "user", "content": p}],
                                   "tools": [{"name": fn["name"], "input_schema": fn["parameters"]}]},
        "/v1beta/models/m:generateContent": lambda p: {"contents": [{"role": "user", "parts": [{"text": p}]}],
                                                       "tools": [{"functionDeclarations": [fn]}]},
        "/v1beta/models/m:streamGenerateContent?alt=sse": lambda p: {
            "contents": [{"role": "user", "parts": [{"text": p}]}], "tools": [{"functionDeclarations": [fn]}]},
    }
    checks = 0
    for path, make in bodies.items():
        for stream in (False, True):
            plain = post(path, dict(make("hello"), stream=stream))
            assert "STUB: hello" in plain, (path, plain)
            call = post(path, dict(make(prompt), stream=stream))
            assert "write_file" in call and "some text" in call and "a.txt" in call, (path, call)
            assert "STUB" not in call, (path, call)
            checks += 2
        begun = time.monotonic()
        post(path, dict(make("[[slow:0.5]]x"), stream=True))
        assert time.monotonic() - begun > 0.4
        for want in (429, 429, 200):
            try:
                post(path, make("y%s [[error:429:2]]" % path))
                got = 200
            except urllib.error.HTTPError as e:
                got = e.code
            assert got == want, (path, got, want)
        try:
            post(path, dict(make("[[hang]]"), stream=True), timeout=0.3)
            raise AssertionError("did not hang")
        except OSError:
            pass
        checks += 5
    path, make = next(iter(bodies.items()))
    try:
        post(path, dict(make("silent once [[hang:1]]"), stream=True), timeout=0.3)
        raise AssertionError("did not hang")
    except OSError:
        pass
    post(path, make("silent once [[hang:1]] and more"))
    checks += 2
    done = dict(bodies["/v1/messages"](prompt))
    done["messages"] += [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "write_file", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "written"},
                                     {"type": "text", "text": "<system-reminder>be good</system-reminder>"}]}]
    text = json.loads(post("/v1/messages", done))["content"][0]["text"]
    assert text == 'STUB: hi  there | results: ["written"]', text
    assert split_turns("[[tool:bash a]][[also:bash b]][[slow:2]]")[1] == \
        [[("tool", "bash a"), ("also", "bash b")], [("slow", "2")]]
    assert split_turns('[[tool:call x {"a":[1]}]]')[1][0] == [("tool", 'call x {"a":[1]}')]
    time.sleep(0.3)
    assert any(e["outcome"] == "client hung up" for e in s.model.log)
    checks += 4
    s.stopping.set()
    s.shutdown()
    print("%d passed, 0 failed" % checks)


def main():
    p = argparse.ArgumentParser(description="A scripted fake LLM server; see the head of this file.")
    p.add_argument("--port", type=int, default=8399)
    p.add_argument("--port-file", help="write the port number to this file once listening")
    p.add_argument("--log", help="append one JSON line a request to this file")
    p.add_argument("--follow", action="store_true",
                   help="print one JSON line on stdout when a request begins to be answered, and one at its end")
    p.add_argument("--dump", help="write each request's whole body to this folder")
    p.add_argument("--prefix", default="STUB: ")
    p.add_argument("--model", action="append", help="a model name to list (may be given more than once)")
    p.add_argument("--selftest", action="store_true")
    a = p.parse_args()
    if a.selftest:
        return selftest()
    s = make_server(a.port, a.prefix, a.log, a.dump, a.model or ("stub-model", "stub-model-2"))
    s.follow = a.follow
    print("listening on http://127.0.0.1:%d" % s.server_address[1], flush=True)
    if a.port_file:
        with open(a.port_file + ".tmp", "w") as f:
            f.write(str(s.server_address[1]))
        os.replace(a.port_file + ".tmp", a.port_file)
    try:
        s.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        s.stopping.set()


if __name__ == "__main__":
    sys.exit(main())
