"""What the stub model says: directives, tools and their arguments, and the model itself. No HTTP here."""

import itertools
import json
import re
import shlex
import threading
from collections import deque

DIRECTIVE = re.compile(
    r"\[\[\s*(tool|also|think|slow|wait|hang|stall|drop|error|big|say|empty|length|refuse|recall)"
    r"(?::(.*?))?\]\](?!\])", re.S)

# Blocks that agents put around or behind what the user typed.
NOISE = re.compile(
    r"<(system-reminder|spawnlet-context|environment_context|user_instructions|session_context|context|INSTRUCTIONS|"
    r"permissions instructions|available-skills|turn_context|skills_instructions|collaboration_mode|turn_aborted|"
    r"current_datetime)\b[^>]*>.*?</\1>", re.S)
# What comes before this mark in a user message belongs to a turn that was cancelled (Claude Code merges messages).
INTERRUPTED = "[Request interrupted by user"


def clean(text):
    """What the user typed, without the agent's additions."""
    text = NOISE.sub("", text)
    at = text.rfind(INTERRUPTED)
    if at >= 0:
        text = text[at:].partition("]")[2]
    return text.strip()


class Turn:
    """What the fake model does in answer to one request."""

    def __init__(self):
        self.think = ""
        self.text = ""
        self.tools = []          # [(name, args dict)]
        self.slow = 0.0          # seconds over which the text is spread
        self.wait = 0.0          # silence before the first byte of the body
        self.hang = False        # silence instead of any answer
        self.stall = False       # silence after half of the text
        self.drop = False        # hang up after half of the text
        self.error = None        # HTTP status
        self.finish = "stop"     # stop | tool | length | refuse

    def summary(self):
        d = {k: v for k, v in self.__dict__.items() if v}
        d["text"] = self.text[:80]
        return d


def split_turns(text):
    """Return (plain text, [[directive, ...] for each model turn])."""
    turns, current = [], []
    for m in DIRECTIVE.finditer(text):
        kind, arg = m.group(1), (m.group(2) or "")
        if kind == "also" and turns and not current:
            turns[-1].append((kind, arg))
            continue
        current.append((kind, arg))
        if kind in ("tool", "also"):
            turns.append(current)
            current = []
    turns.append(current)
    return DIRECTIVE.sub("", text).strip(), turns


# --------------------------------------------------------------------------
# Finding a tool and filling in its arguments
# --------------------------------------------------------------------------

TOOL_NAMES = {
    "write": ["write", "write_file", "writefile", "create_file", "create", "fs_write", "file_write", "write_text_file",
              "save", "file_editor", "str_replace_editor"],
    "read": ["read", "read_file", "readfile", "read_text_file", "view", "cat", "file_editor", "str_replace_editor"],
    "bash": ["bash", "shell", "run_shell_command", "execute", "exec_command", "shell_command", "local_shell",
             "terminal", "execute_bash", "run_command", "run_in_terminal", "container.exec"],
}
ARG_NAMES = {
    "path": ["file_path", "filepath", "path", "absolute_path", "filename", "target_file", "file"],
    "content": ["content", "contents", "file_text", "text", "new_str"],
    "command": ["command", "cmd", "script", "commandline", "code"],
}


def find_tool(tools, wanted):
    """tools: {name: JSON schema}.  wanted: write, read, bash or a tool's own name (a suffix will do)."""
    lower = {n.lower(): n for n in tools}
    for name in TOOL_NAMES.get(wanted, []) + [wanted.lower()]:
        if name in lower:
            return lower[name]
    for name in TOOL_NAMES.get(wanted, []) + [wanted.lower()]:
        for low, real in lower.items():
            if low.endswith(name):
                return real
    return None


def filler(schema):
    """The smallest value that fits a JSON schema (for required arguments that the script says nothing about)."""
    if not isinstance(schema, dict):
        return "stub"
    if "default" in schema:
        return schema["default"]
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return filler(schema[key][0])
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), "string")
    kind = str(kind).lower()
    if kind == "object":
        props = schema.get("properties", {})
        return {k: filler(props.get(k, {})) for k in schema.get("required", list(props))}
    return {"array": [], "integer": max(1, int(schema.get("minimum", 1))), "number": 1, "boolean": False,
            "null": None}.get(kind, "stub")


def build_args(schema, given):
    """Map our own argument names (path, content, command) to those of the tool's schema."""
    props = (schema or {}).get("properties", {})
    lower = {p.lower(): p for p in props}
    args = {}
    for key, value in given.items():
        name = next((lower[n] for n in ARG_NAMES[key] if n in lower), None)
        if name is None:
            continue
        if key == "command" and props[name].get("type") == "array":
            value = ["bash", "-lc", value]
        args[name] = value
    for req in (schema or {}).get("required", []):
        if req not in args:
            args[req] = filler(props.get(req, {}))
    if "require_escalated" in json.dumps(props.get("sandbox_permissions", {})):     # Codex: ask for approval
        args.update(sandbox_permissions="require_escalated", justification="stub wants to run this")
    if "command" in props and "path" in given and props["command"].get("enum"):   # file_editor style tools
        args["command"] = "create" if "content" in given else "view"
    return args


def make_call(tools, spec):
    """spec: 'write PATH TEXT', 'read PATH', 'bash COMMAND', 'run COMMAND' or 'call NAME {json}'.  Returns (name, args)."""
    kind, _, rest = spec.strip().partition(" ")
    if kind == "call":
        name, _, raw = rest.strip().partition(" ")
        found = find_tool(tools, name) or name
        try:
            args = json.loads(raw) if raw.strip() else filler(tools.get(found) or {"type": "object"})
        except ValueError as e:
            args = {"stub_bad_json": raw, "why": str(e)}
        return found, args if isinstance(args, dict) else {"value": args}
    if kind == "write":
        path, _, content = rest.partition(" ")
        name = find_tool(tools, "write")
        if name:
            return name, build_args(tools[name], {"path": path, "content": content})
        # No such tool (Codex): write through the shell.
        rest, kind = "printf %%s %s > %s" % (shlex.quote(content), shlex.quote(path)), "bash"
    if kind == "read":
        name = find_tool(tools, "read")
        if name:
            return name, build_args(tools[name], {"path": rest.strip()})
        rest, kind = "cat %s" % shlex.quote(rest.strip()), "bash"
    name = find_tool(tools, "bash")
    if name:
        args = build_args(tools[name], {"command": rest})
        if kind == "run":
            args.pop("sandbox_permissions", None)
            args.pop("justification", None)
        return name, args
    return "no_shell_tool", {"command": rest}


def flatten(content):
    """Text of a message content that may be a string, a part or a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(flatten, content)))
    if isinstance(content, dict):
        for key in ("text", "content", "output", "response", "result"):
            if key in content:
                value = content[key]
                return value if isinstance(value, str) else flatten(value) or json.dumps(value)
        if content.get("type") in ("image", "image_url", "input_image"):
            return "[image]"
        return json.dumps(content)
    return str(content)


# --------------------------------------------------------------------------
# The fake model
# --------------------------------------------------------------------------

class Request:
    """A model request in a form common to all APIs."""

    def __init__(self, api, model, stream, tools, messages, schema=None):
        self.api, self.model, self.stream = api, model, stream
        self.tools = tools          # {name: JSON schema}
        self.messages = messages    # [("user"|"call"|"result"|"assistant", text)], system prompts left out
        self.schema = schema        # schema of the JSON that the answer must be, or None

    def script(self):
        """(last user text, number of the model turn within it, results of the tools called since then)."""
        at, text = -1, ""
        for i, (role, value) in enumerate(self.messages):
            if role == "user" and clean(value):
                at, text = i, clean(value)
        turn, results, last = 0, [], None
        for role, value in self.messages[at + 1:]:
            if role == "call" and last != "call":
                turn += 1
            if role == "result":
                results.append(value)
            last = role
        return text, turn, results

    def earlier(self):
        """What the user said before the last time, in order: the agent's memory of the conversation."""
        said = [clean(value) for role, value in self.messages if role == "user" and clean(value)]
        return said[:-1]


class Model:
    def __init__(self, prefix):
        self.prefix = prefix
        self.lock = threading.Lock()
        self.counts = {}
        self.log = deque(maxlen=1000)
        self.ids = itertools.count(1)

    def reset(self):
        with self.lock:
            self.counts.clear()
            self.log.clear()

    def next_id(self, stem):
        return "%s_stub%06d" % (stem, next(self.ids))

    def count(self, key):
        with self.lock:
            self.counts[key] = self.counts.get(key, 0) + 1
            return self.counts[key]

    def decide(self, req):
        """Turn a request into a Turn."""
        text, number, results = req.script()
        plain, turns = split_turns(text)
        t = Turn()
        if req.schema is not None and not req.tools:
            t.text = json.dumps(filler(req.schema))
            return t, number, "auxiliary"
        if not req.tools:
            t.text = "Stub " + (plain.split("\n")[-1][:40] or "title")
            return t, number, "auxiliary"
        directives = turns[number] if number < len(turns) else []
        answer = self.prefix + plain
        if results:
            answer += " | results: " + json.dumps([r[:300] for r in results])
        final = number >= len(turns) - 1
        t.text = answer if final else ""
        for kind, arg in directives:
            if kind in ("tool", "also"):
                t.tools.append(make_call(req.tools, arg))
                t.finish = "tool"
            elif kind == "think":
                t.think = arg
            elif kind == "slow":
                t.slow = float(arg or 1)
                t.text = t.text or "slowly preparing a tool call"
            elif kind == "wait":
                t.wait = float(arg or 1)
            elif kind == "hang" and arg:
                # Of all requests: an agent may send the text once more, with the next one.
                t.hang = self.count((kind, arg)) <= int(arg)
            elif kind in ("hang", "stall", "drop"):
                setattr(t, kind, True)
                if kind != "hang":
                    t.text = t.text or "half a text"
            elif kind == "error":
                code, _, times = arg.partition(":")
                if not times or self.count((text, number, kind, arg)) <= int(times):
                    t.error = int(code or 500)
            elif kind == "big":
                n = int(arg or 100000)
                t.text = ("0123456789abcdef" * (n // 16 + 1))[:n]
            elif kind == "say":
                t.text = arg
            elif kind == "recall":
                t.text = self.prefix + "recall: " + json.dumps(req.earlier())
            elif kind == "empty":
                t.text = ""
            elif kind in ("length", "refuse"):
                t.finish = kind
        return t, number, "turn %d of %d" % (number + 1, len(turns))
