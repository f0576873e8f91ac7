#!/bin/sh
# The README's first command: builds spawnlet and spawnlet-shim, and runs `spawnlet demo` to its end.
#
#   scripts/demo.sh [--keep]
#
# Beside the build nothing needs a network. Nothing outside of target/ and a scratch directory is
# written; no process is left. Ends with exit code 0 only if every step came out as it should.
set -eu
cd "$(dirname "$0")/.."
echo 'Building spawnlet; the first time takes some minutes.' >&2
# `cargo run` would build spawnlet alone. With the examples the dependencies are those of the tests, so
# that the README's two commands share one build.
cargo build --locked --bins --examples
exec "${CARGO_TARGET_DIR:-target}/debug/spawnlet" demo "$@"
