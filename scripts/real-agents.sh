#!/usr/bin/env bash
# Runs the cases of tests/it/real.rs on real ACP agents, offline, against tests/agents/stub_model.py.
#
#   scripts/real-agents.sh [NAME...]        default: codexz
#
# Installs each agent that is not there yet, by npm and outside of the repository: into AGENTS_DIR
# (default ~/.cache/spawnlet-agents). Needs cargo, python3 3.11 and, to install, npm; codexz needs
# no Node to run. Ends with exit code 0 only if every case passed on every agent named.
set -euo pipefail
cd "$(dirname "$0")/.."
# So that a daemon or a token of yours is neither asked nor needed.
unset SPAWNLET_URL SPAWNLET_TOKEN SPAWNLET_NAMESPACE SPAWNLET_INSTANCE SPAWNLET_DATA_DIR

[ $# -gt 0 ] || set -- codexz
recipes=tests/agents/agent_recipes.py
known="$(python3 "$recipes" list)"
for name in "$@"; do
    if ! grep -q "^$name " <<<"$known"; then
        printf 'no recipe for the agent "%s"; there are:\n%s\n' "$name" "$known" >&2
        exit 2
    fi
done

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
table="$scratch/table"
failed=

python3 tests/agents/stub_model.py --selftest >"$scratch/selftest" || {
    cat "$scratch/selftest" >&2
    echo "the stub model server does not pass its own tests" >&2
    exit 1
}
cargo build --locked --quiet --bins --examples
cargo test --locked --quiet --test it --no-run

for name in "$@"; do
    packages="$(grep "^$name " <<<"$known" | cut -d' ' -f2-)"
    echo "== $name ($packages)"
    if ! python3 "$recipes" install "$name"; then
        failed=1
        printf '!! %s COULD NOT BE INSTALLED: none of its cases ran\n' "$name" >&2
        printf '%s\t%s\t%s\t%s\n' "$name" "$packages" "(install)" "NOT INSTALLED" >>"$table"
        continue
    fi
    # One line a case comes out of the harness; without one, nothing has been tested.
    out="$scratch/$name"
    RUST_BACKTRACE=0 SPAWNLET_REAL_AGENTS="$name" cargo test --locked --quiet --test it -- \
        real:: --test-threads=2 --format=pretty >"$out" 2>&1 || failed=1
    sed -n 's/^test real::\([a-z]*::\)\{0,1\}\([a-z0-9_]*\) \.\.\. \(ok\|FAILED\).*/\2\t\3/p' "$out" |
        while IFS=$'\t' read -r case result; do
            printf '%s\t%s\t%s\t%s\n' "$name" "$packages" "${case//_/ }" "$result"
        done >"$scratch/rows"
    if [ ! -s "$scratch/rows" ]; then
        failed=1
        printf '%s\t%s\t%s\t%s\n' "$name" "$packages" "(all)" "DID NOT RUN" >"$scratch/rows"
    fi
    cat "$scratch/rows" >>"$table"
    if grep -qv $'\tok$' "$scratch/rows"; then
        failed=1
        cat "$out" >&2
    fi
done

printf '\n'
awk -F'\t' '
    BEGIN { printf "%-10s %-13s %s\n", "AGENT", "RESULT", "CASE" }
    { printf "%-10s %-13s %s\n", $1, $4, $3 }' "$table"
[ -z "$failed" ] || { printf '\nreal agents: FAILED\n' >&2; exit 1; }
printf '\nreal agents: all passed\n'
