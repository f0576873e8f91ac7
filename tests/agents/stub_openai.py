"""The two OpenAI APIs of the stub model: chat completions and responses."""

import itertools
import json
import time

from stub_script import Request, flatten

USAGE_CHAT = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
              "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}
USAGE_RESPONSES = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 20,
                   "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 120}


class OpenAi:
    """A part of the HTTP handler."""

    # ---- OpenAI chat completions ----------------------------------------

    @staticmethod
    def parse_chat(b):
        tools = {}
        for x in b.get("tools") or []:
            f = x.get("function", x)
            tools[f.get("name", "?")] = f.get("parameters") or {}
        msgs = []
        for m in b.get("messages") or []:
            role = m.get("role")
            if role == "user":
                msgs.append(("user", flatten(m.get("content"))))
            elif role == "tool":
                msgs.append(("result", flatten(m.get("content"))))
            elif role == "assistant":
                if m.get("tool_calls"):
                    msgs.append(("call", json.dumps(m["tool_calls"])))
                else:
                    msgs.append(("assistant", flatten(m.get("content"))))
        fmt = b.get("response_format") or {}
        schema = None
        if fmt.get("type") == "json_schema":
            schema = (fmt.get("json_schema") or {}).get("schema", {})
        elif fmt.get("type") == "json_object":
            schema = {"type": "object"}
        req = Request("chat", b.get("model"), bool(b.get("stream")), tools, msgs, schema)
        req.include_usage = bool((b.get("stream_options") or {}).get("include_usage"))
        return req

    FINISH_CHAT = {"stop": "stop", "tool": "tool_calls", "length": "length", "refuse": "content_filter"}

    def chat_calls(self, t):
        return [{"id": self.server.model.next_id("call"), "type": "function",
                 "function": {"name": n, "arguments": json.dumps(a)}} for n, a in t.tools]

    def chat_stream(self, req, t):
        self.start_stream()
        self.before_body(t)
        base = {"id": self.server.model.next_id("chatcmpl"), "object": "chat.completion.chunk",
                "created": int(time.time()), "model": req.model, "system_fingerprint": "stub"}

        def send(delta, finish=None):
            self.sse(dict(base, choices=[{"index": 0, "delta": delta, "finish_reason": finish}]))
        send({"role": "assistant", "content": ""})
        if t.think:
            send({"reasoning_content": t.think})
        for p in self.pieces(t):
            send({"content": p})
        for i, c in enumerate(self.chat_calls(t)):
            raw = c["function"]["arguments"]
            send({"tool_calls": [dict(c, index=i, function={"name": c["function"]["name"], "arguments": ""})]})
            send({"tool_calls": [{"index": i, "function": {"arguments": raw}}]})
        send({}, self.FINISH_CHAT[t.finish])
        if req.include_usage:
            self.sse(dict(base, choices=[], usage=USAGE_CHAT))
        self.sse("[DONE]")
        self.end_stream()

    def chat_json(self, req, t):
        msg = {"role": "assistant", "content": t.text or None}
        if t.tools:
            msg["tool_calls"] = self.chat_calls(t)
        self.send_json({"id": self.server.model.next_id("chatcmpl"), "object": "chat.completion",
                        "created": int(time.time()), "model": req.model, "usage": USAGE_CHAT,
                        "choices": [{"index": 0, "message": msg, "finish_reason": self.FINISH_CHAT[t.finish]}]})

    # ---- OpenAI responses ------------------------------------------------

    @staticmethod
    def parse_responses(b):
        tools, custom, spaces = {}, set(), {}
        for x in b.get("tools") or []:
            kind = x.get("type")
            if kind == "function":
                tools[x["name"]] = x.get("parameters") or {}
            elif kind == "namespace":
                for y in x.get("tools") or []:
                    tools[y.get("name", "?")] = y.get("parameters") or {}
                    spaces[y.get("name", "?")] = x.get("name")
            elif kind == "custom":
                tools[x["name"]] = {"properties": {"input": {"type": "string"}}, "required": ["input"]}
                custom.add(x["name"])
            elif kind == "local_shell":
                tools["local_shell"] = {"properties": {"command": {"type": "array"}}, "required": ["command"]}
        msgs, items = [], b.get("input")
        if isinstance(items, str):
            items = [{"type": "message", "role": "user", "content": items}]
        for m in items or []:
            kind, role = m.get("type", "message"), m.get("role")
            if kind == "message" and role == "user":
                msgs.append(("user", flatten(m.get("content"))))
            elif kind == "message" and role == "assistant":
                msgs.append(("assistant", flatten(m.get("content"))))
            elif kind.endswith("_output"):
                msgs.append(("result", flatten(m.get("output"))))
            elif kind.endswith("_call"):
                msgs.append(("call", json.dumps(m)))
        fmt = ((b.get("text") or {}).get("format")) or {}
        schema = fmt.get("schema") if fmt.get("type") == "json_schema" else None
        req = Request("responses", b.get("model"), bool(b.get("stream")), tools, msgs, schema)
        req.custom, req.spaces = custom, spaces
        return req

    def responses_items(self, req, t):
        """Output items, in order, without the text message."""
        out = []
        for name, args in t.tools:
            cid = self.server.model.next_id("call")
            if name in req.custom:
                out.append({"type": "custom_tool_call", "id": self.server.model.next_id("ctc"), "status": "completed",
                            "call_id": cid, "name": name, "input": str(args.get("input", ""))})
            elif name == "local_shell":
                out.append({"type": "local_shell_call", "id": self.server.model.next_id("lsc"), "status": "completed",
                            "call_id": cid, "action": {"type": "exec", "command": args["command"], "env": {}}})
            else:
                out.append({"type": "function_call", "id": self.server.model.next_id("fc"), "status": "completed",
                            "call_id": cid, "name": name, "arguments": json.dumps(args)})
                if name in req.spaces:
                    out[-1]["namespace"] = req.spaces[name]
        return out

    def response_object(self, rid, req, t, output, status):
        r = {"id": rid, "object": "response", "created_at": int(time.time()), "status": status, "model": req.model,
             "output": output, "error": None, "incomplete_details": None, "parallel_tool_calls": True,
             "tool_choice": "auto", "tools": [], "usage": None}
        if status != "in_progress":
            r["usage"] = USAGE_RESPONSES
        if status == "incomplete":
            r["incomplete_details"] = {"reason": "max_output_tokens" if t.finish == "length" else "content_filter"}
        return r

    def responses_stream(self, req, t):
        self.start_stream()
        self.before_body(t)
        seq, rid = itertools.count(), self.server.model.next_id("resp")

        def send(kind, **kw):
            self.sse(dict(kw, type=kind, sequence_number=next(seq)), kind)
        send("response.created", response=self.response_object(rid, req, t, [], "in_progress"))
        output, index = [], 0
        if t.think:
            item = {"type": "reasoning", "id": self.server.model.next_id("rs"), "summary": []}
            send("response.output_item.added", output_index=index, item=item)
            send("response.reasoning_summary_part.added", item_id=item["id"], output_index=index, summary_index=0,
                 part={"type": "summary_text", "text": ""})
            send("response.reasoning_summary_text.delta", item_id=item["id"], output_index=index, summary_index=0,
                 delta=t.think)
            send("response.reasoning_summary_text.done", item_id=item["id"], output_index=index, summary_index=0,
                 text=t.think)
            item = dict(item, summary=[{"type": "summary_text", "text": t.think}])
            send("response.output_item.done", output_index=index, item=item)
            output.append(item)
            index += 1
        if t.text:
            mid = self.server.model.next_id("msg")
            item = {"type": "message", "id": mid, "role": "assistant", "status": "in_progress", "content": []}
            send("response.output_item.added", output_index=index, item=item)
            send("response.content_part.added", item_id=mid, output_index=index, content_index=0,
                 part={"type": "output_text", "text": "", "annotations": []})
            full = ""
            for p in self.pieces(t):
                full += p
                send("response.output_text.delta", item_id=mid, output_index=index, content_index=0, delta=p)
            send("response.output_text.done", item_id=mid, output_index=index, content_index=0, text=full)
            part = {"type": "output_text", "text": full, "annotations": []}
            send("response.content_part.done", item_id=mid, output_index=index, content_index=0, part=part)
            item = dict(item, status="completed", content=[part])
            send("response.output_item.done", output_index=index, item=item)
            output.append(item)
            index += 1
        for item in self.responses_items(req, t):
            send("response.output_item.added", output_index=index, item=dict(item, status="in_progress"))
            if item["type"] == "function_call":
                send("response.function_call_arguments.delta", item_id=item["id"], output_index=index,
                     delta=item["arguments"])
                send("response.function_call_arguments.done", item_id=item["id"], output_index=index,
                     arguments=item["arguments"])
            send("response.output_item.done", output_index=index, item=item)
            output.append(item)
            index += 1
        status = "incomplete" if t.finish in ("length", "refuse") else "completed"
        send("response." + status, response=self.response_object(rid, req, t, output, status))
        self.end_stream()

    def responses_json(self, req, t):
        output = []
        if t.text:
            output.append({"type": "message", "id": self.server.model.next_id("msg"), "role": "assistant",
                           "status": "completed",
                           "content": [{"type": "output_text", "text": t.text, "annotations": []}]})
        output += self.responses_items(req, t)
        status = "incomplete" if t.finish in ("length", "refuse") else "completed"
        self.send_json(self.response_object(self.server.model.next_id("resp"), req, t, output, status))
