#!/usr/bin/env bash
# The README's first command: a session from a YAML file, answered by the example agent, offline.
#
#   scripts/quickstart.sh
#
# Builds, starts a daemon of its own in a scratch directory on a free port, lets it apply
# examples/quickstart/, shows the answer, the transcript and the reconcile reports, gives the
# session a second prompt, deletes it, stops the daemon, and shows that no process is left.
# Nothing outside of the scratch directory and target/ is written.
set -euo pipefail
cd "$(dirname "$0")/.."
# So that a daemon or a token of yours is neither asked nor needed.
unset SPAWNLET_URL SPAWNLET_TOKEN SPAWNLET_NAMESPACE SPAWNLET_INSTANCE

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }

say "Build the program and the example agent"
cargo build --quiet --bins --examples
bin="${CARGO_TARGET_DIR:-$PWD/target}/debug"

scratch="$(mktemp -d)"
data="$scratch/data"
# Where the daemon and its token are: a client would look in your own data directory.
spawnlet() { "$bin/spawnlet" --data-dir "$data" "$@"; }
daemon=
finish() {
    status=$?
    trap - EXIT
    if [ -n "$daemon" ] && kill -0 "$daemon" 2>/dev/null; then
        kill -TERM "$daemon"
        wait "$daemon" || true
    fi
    if [ "$status" -ne 0 ] && [ -s "$scratch/log" ]; then
        printf '\nThe end of the daemon'\''s log:\n' >&2
        tail -n 30 "$scratch/log" >&2
    fi
    rm -rf "$scratch"
    exit "$status"
}
trap finish EXIT

say "Start the daemon on examples/quickstart"
mkfifo "$scratch/stdout"
# The agent's program, echo-agent, is found through the daemon's PATH.
PATH="$bin/examples:$PATH" "$bin/spawnlet" serve --data-dir "$data" --listen 127.0.0.1:0 \
    --manifests examples/quickstart >"$scratch/stdout" 2>"$scratch/log" &
daemon=$!
# The daemon says that it is ready by one line; the end of the file means that it did not start.
exec 3<"$scratch/stdout"
IFS= read -r -t 60 line <&3 || { echo "the daemon did not become ready" >&2; exit 1; }
printf '%s\n' "$line"
run spawnlet get manifests

say "The session's first turn"
run spawnlet wait turn hello-1 --for phase=Completed --timeout 60s
run spawnlet get sessions
run spawnlet get turns
run spawnlet response hello-1
echo

say "The transcript"
run spawnlet logs hello

say "What the loop saw, decided and did"
run spawnlet report session/hello

say "A second prompt to the same session"
run spawnlet prompt hello "And a second turn."
echo

say "Take the session away"
run spawnlet delete session hello --wait

say "Stop the daemon"
kill -TERM "$daemon"
wait "$daemon"
echo "the daemon ended with exit code 0"

say "No process is left"
# Every process of an agent's tree, the shim included, carries a mark in its environment that begins
# with the id of this daemon's store.
mark="SPAWNLET_INSTANCE=$(head -n 1 "$data/store.id")"
left="$({ grep -lszF "$mark" /proc/[0-9]*/environ || true; } | tr '\n' ' ')"
if [ -n "$left" ]; then
    echo "these processes are left:$left" >&2
    exit 1
fi
echo "neither a shim, nor an agent, nor anything that it started"
