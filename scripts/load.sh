#!/bin/sh
# The daemon under the load of callers over MCP, and at its ends. Tier 0 is what each commit does;
# tier 1 (before a merge) makes 1000 calls of prompt_to_agent over 20 sessions, 8 at a time, fails
# an agent 50 times at each stage before it has its prompt, and stops a daemon in 8 turns 50 times.
set -eu

tier=0
case ${1:-} in
    '') ;;
    --tier) tier=${2:-} ;;
    *) tier= ;;
esac
case $tier in [01]) ;; *) echo "usage: scripts/load.sh [--tier 0|1]" >&2; exit 64 ;; esac

cd "$(dirname "$0")/.."
# The agents are an example, which a single test target does not build.
cargo build --bins --examples
SPAWNLET_TIER=$tier cargo test --test it -- --nocapture --test-threads=1 \
    load::many_calls starts::an_agent_that_fails restarts::an_orderly_stop_with_every_slot \
    mcp::work::a_client_that_hangs_up_takes
