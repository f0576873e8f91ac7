#!/bin/sh
# Kills the daemon at random points, and judges what is left. Tier 0 (each commit) does 25 kills
# under load, tier 1 (before a merge) 100, tier 2 (by hand) 1000. The seed is printed; the same one
# makes the same calls and waits as long before each kill. From tier 1 on, tests in memory follow at
# the numbers of the catalogue: admissions (A5), agents that fail early (C6), cancels (E6), trees.
set -eu

usage() {
    echo "usage: scripts/chaos.sh [--tier 0|1|2] [--seed NUMBER]" >&2
    exit 64
}

tier=0
seed=
while [ $# -gt 0 ]; do
    case $1 in
        --tier) tier=${2:-}; shift ;;
        --seed) seed=${2:-}; shift ;;
        *) usage ;;
    esac
    [ $# -gt 0 ] || usage
    shift
done
case $tier in [012]) ;; *) usage ;; esac
case $seed in *[!0-9]*) usage ;; esac

cd "$(dirname "$0")/.."
# The agents are an example, which a single test target does not build.
cargo build --bins --example fakeagent
SPAWNLET_TIER=$tier SPAWNLET_SEED=$seed \
    cargo test --test it chaos:: -- --nocapture --test-threads=1
[ "$tier" = 0 ] || SPAWNLET_TIER=$tier cargo test --lib -- \
    admission::tests::bounds controller::tests::spawn controller::tests::cancels controller::tests::tree
