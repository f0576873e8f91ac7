#!/usr/bin/env bash
# The one command that says whether the tree is in order: format, lints, build, tests, documentation,
# dependencies.
#
#   scripts/test.sh
#
# Needs cargo with rustfmt and clippy; cargo-nextest and cargo-deny are used where they are
# installed. RUSTFLAGS stays as it is, so that every step shares one build cache.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }
has() { command -v "$1" >/dev/null 2>&1; }

step "Format"
cargo fmt --check

step "Lints"
cargo clippy --locked --all-targets --quiet -- -D warnings

step "Build"
# The tests start the daemon, the shim and both example agents as programs.
cargo build --locked --quiet --bins --examples

step "Documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --quiet --lib --document-private-items

step "Dependencies"
if has cargo-deny; then
    cargo deny --offline check bans licenses sources
else
    echo "!! cargo-deny is not installed: bans, sources and advisories were NOT checked."
    echo "!! Licences are checked all the same, by the test tidy."
fi

# Last, so that the runner's closing line is this script's last line.
step "Tests"
if has cargo-nextest; then
    cargo nextest run --locked --no-fail-fast
else
    echo "!! cargo-nextest is not installed: cargo test runs the same tests, more slowly."
    cargo test --locked --no-fail-fast --lib --bins --tests
fi
