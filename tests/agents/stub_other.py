"""The Anthropic and Google APIs of the stub model."""

import itertools
import json

from stub_script import Request, flatten

USAGE_GEMINI = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}


class Anthropic:
    """A part of the HTTP handler."""

    # ---- Anthropic messages ---------------------------------------------

    @staticmethod
    def parse_anthropic(b):
        tools = {x["name"]: x.get("input_schema") or {} for x in b.get("tools") or [] if "name" in x}
        msgs = []
        for m in b.get("messages") or []:
            content = m.get("content")
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            said = []
            for part in content or []:
                kind = part.get("type")
                if m.get("role") == "user":
                    if kind == "tool_result":
                        msgs.append(("result", flatten(part.get("content"))))
                    else:
                        said.append(flatten(part))
                elif m.get("role") == "assistant":
                    if kind == "tool_use":
                        msgs.append(("call", json.dumps(part)))
                    elif kind == "text":
                        msgs.append(("assistant", part.get("text", "")))
            if said:
                msgs.append(("user", "\n".join(said)))
        fmt = (b.get("output_config") or {}).get("format") or b.get("output_format") or {}
        schema = fmt.get("schema") if fmt.get("type") == "json_schema" else None
        return Request("anthropic", b.get("model"), bool(b.get("stream")), tools, msgs, schema)

    FINISH_ANTHROPIC = {"stop": "end_turn", "tool": "tool_use", "length": "max_tokens", "refuse": "refusal"}

    def anthropic_stream(self, req, t):
        self.start_stream()
        self.before_body(t)

        def send(kind, **kw):
            self.sse(dict(kw, type=kind), kind)
        index = itertools.count()
        send("message_start", message={
            "id": self.server.model.next_id("msg"), "type": "message", "role": "assistant", "model": req.model,
            "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                      "output_tokens": 1}})
        send("ping")
        if t.think:
            i = next(index)
            send("content_block_start", index=i, content_block={"type": "thinking", "thinking": "", "signature": ""})
            send("content_block_delta", index=i, delta={"type": "thinking_delta", "thinking": t.think})
            send("content_block_delta", index=i, delta={"type": "signature_delta", "signature": "stub"})
            send("content_block_stop", index=i)
        if t.text:
            i = next(index)
            send("content_block_start", index=i, content_block={"type": "text", "text": ""})
            for p in self.pieces(t):
                send("content_block_delta", index=i, delta={"type": "text_delta", "text": p})
            send("content_block_stop", index=i)
        for name, args in t.tools:
            i = next(index)
            send("content_block_start", index=i, content_block={
                "type": "tool_use", "id": self.server.model.next_id("toolu"), "name": name, "input": {}})
            send("content_block_delta", index=i, delta={"type": "input_json_delta", "partial_json": json.dumps(args)})
            send("content_block_stop", index=i)
        send("message_delta", delta={"stop_reason": self.FINISH_ANTHROPIC[t.finish], "stop_sequence": None},
             usage={"output_tokens": 20})
        send("message_stop")
        self.end_stream()

    def anthropic_json(self, req, t):
        content = [{"type": "text", "text": t.text}] if t.text else []
        content += [{"type": "tool_use", "id": self.server.model.next_id("toolu"), "name": n, "input": a}
                    for n, a in t.tools]
        self.send_json({"id": self.server.model.next_id("msg"), "type": "message", "role": "assistant",
                        "model": req.model, "content": content, "stop_sequence": None,
                        "stop_reason": self.FINISH_ANTHROPIC[t.finish],
                        "usage": {"input_tokens": 100, "output_tokens": 20}})


class Gemini:
    """A part of the HTTP handler."""

    # ---- Google Gemini ---------------------------------------------------

    def parse_gemini(self, b, model, stream):
        tools = {}
        for x in b.get("tools") or []:
            for f in x.get("functionDeclarations") or x.get("function_declarations") or []:
                tools[f["name"]] = f.get("parametersJsonSchema") or f.get("parameters") or {}
        msgs = []
        for m in b.get("contents") or []:
            said, role = [], "user" if m.get("role", "user") == "user" else "assistant"
            for part in m.get("parts") or []:
                if "functionResponse" in part:
                    msgs.append(("result", flatten(part["functionResponse"].get("response"))))
                elif "functionCall" in part:
                    msgs.append(("call", json.dumps(part["functionCall"])))
                elif part.get("thought"):
                    continue
                elif "text" in part:
                    said.append(part["text"])
            if said:
                msgs.append((role, "\n".join(said)))
        cfg = b.get("generationConfig") or {}
        schema = cfg.get("responseJsonSchema") or cfg.get("responseSchema")
        if schema is None and cfg.get("responseMimeType") == "application/json":
            schema = {"type": "object"}
        req = Request("gemini", model, stream, tools, msgs, schema)
        req.as_sse = "alt=sse" in self.path
        return req

    FINISH_GEMINI = {"stop": "STOP", "tool": "STOP", "length": "MAX_TOKENS", "refuse": "SAFETY"}

    def gemini_stream(self, req, t):
        self.start_stream("text/event-stream" if req.as_sse else "application/json")
        self.before_body(t)
        rid, first = self.server.model.next_id("gem"), [True]

        def send(parts, finish=None):
            cand = {"index": 0, "content": {"role": "model", "parts": parts}}
            if finish:
                cand["finishReason"] = finish
            obj = {"candidates": [cand], "usageMetadata": USAGE_GEMINI, "modelVersion": req.model, "responseId": rid}
            if req.as_sse:
                self.sse(obj)
            else:
                self.chunk(("[" if first[0] else ",") + json.dumps(obj))
            first[0] = False
        if t.think:
            send([{"text": t.think, "thought": True}])
        for p in self.pieces(t):
            send([{"text": p}])
        for name, args in t.tools:
            send([{"functionCall": {"id": self.server.model.next_id("call"), "name": name, "args": args}}])
        send([] if t.text or t.tools else [{"text": ""}], self.FINISH_GEMINI[t.finish])
        if not req.as_sse:
            self.chunk("]")
        self.end_stream()

    def gemini_json(self, req, t):
        parts = [{"text": t.text}] if t.text else []
        parts += [{"functionCall": {"name": n, "args": a}} for n, a in t.tools]
        self.send_json({"candidates": [{"index": 0, "content": {"role": "model", "parts": parts},
                                        "finishReason": self.FINISH_GEMINI[t.finish]}],
                        "usageMetadata": USAGE_GEMINI, "modelVersion": req.model})
