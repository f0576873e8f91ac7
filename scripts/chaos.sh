#!/bin/sh
# Faults on purpose: what is left of a daemon that died, met a full or slow disk, or had bad agents.
#
#   scripts/chaos.sh [--tier 0|1|2] [--short] [--seed NUMBER] [--only memory|machine]
#
# tier 0 (each commit)     25 kills under load, the short forms of D3, D4, C8, E2, J1
# tier 1 (before a merge)  100 kills; an abort at each named failpoint in four lives (C2); store errors
#                          at each step (C4); a full disk (C5, needs root); 500 damaged files (C9); 360
#                          escapes (D1); D3 x 50, D4 x 20; 4 x 25 stops by the ladder (D5); 500 reused
#                          process ids (D8, needs root); E2 x 20; late words (E5); fuzz targets on stable
#                          (E9); races for paths (G4, its mounts need root); a stopped daemon (I3); J1
#                          with 300 sessions, J2, J3 and J5 in short; admissions (A5), 10,000 simulated
#                          lives (B1), trees (B2), early ends (C6), cancels (E6), queue (B3), two writers
#                          (B4). --short: D1, I3 and E1 not again at the numbers of scripts/test.sh,
#                          fewer of D5 and G4
# tier 2 (by hand)         1000 kills; all of tier 1 at the catalogue's numbers; power cuts (C3, needs
#                          root and loop devices); a slow disk (C7, needs strace); 200 launches from
#                          threads that end (D7); floods (E3); a wall clock that jumps (I2, needs
#                          libfaketime); a daemon that is stopped for 30 s (I3)
#
# --only memory: what needs no process, file or clock of the machine; --only machine: the rest. So the
# two can run beside each other.
#
# What cannot run here says that it was skipped, and why. The seed is printed; the same one makes the
# same calls and waits as long before each kill.
set -eu

usage() {
    echo "usage: scripts/chaos.sh [--tier 0|1|2] [--short] [--seed NUMBER] [--only memory|machine]" >&2
    exit 64
}

tier=0
seed=
short=
only=
while [ $# -gt 0 ]; do
    case $1 in
        --tier) tier=${2:-}; shift ;;
        --short) short=1 ;;
        --seed) seed=${2:-}; shift ;;
        --only) only=${2:-}; shift ;;
        *) usage ;;
    esac
    [ $# -gt 0 ] || usage
    shift
done
case $tier in [012]) ;; *) usage ;; esac
case $seed in *[!0-9]*) usage ;; esac
case $only in '' | memory | machine) ;; *) usage ;; esac

cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
part() { printf '\n== %s\n' "$*"; }
skip() { printf '!! skipped: %s\n' "$*"; }
it() { SPAWNLET_TIER=$tier SPAWNLET_SHORT=$short SPAWNLET_SEED=$seed cargo test --test it "$@" -- --nocapture --test-threads=1; }

# E1 is the same at tier 1 as in scripts/test.sh.
mutated=mutated_lines
[ -z "$short" ] || mutated=
in_memory() {
    part "In memory: A5, B1, B2, B3, B4, C4, C6, C9, E1, E5, E6, E9, G4"
    # shellcheck disable=SC2086 # a word or none
    SPAWNLET_TIER=$tier SPAWNLET_SEED=$seed cargo test --lib -- \
        plan::sim admission::tests::bounds controller::tests::spawn controller::tests::cancels controller::tests::tree \
        controller::tests::late controller::tests::clocks runtime::files \
        random_work_meets_no_key_twice writers_with_stale_versions ignores_versions \
        sqlite::tests::nth damaged_files fuzz escaped $mutated
}
if [ "$only" = memory ]; then
    in_memory
    exit 0
fi

small=
cut=
loop=
memory=
log=
clean_up() {
    [ -z "$memory" ] || kill "$memory" 2>/dev/null || true
    [ -z "$log" ] || rm -f "$log"
    [ -z "$small" ] || { umount "$small" && rmdir "$small"; }
    [ -z "$cut" ] || { umount "$cut" && rmdir "$cut"; }
    [ -z "$loop" ] || rm -f "$loop"
}
trap clean_up EXIT

points=
if [ "$tier" != 0 ]; then
    part "Build the daemon with failpoints"
    cargo build --bins --examples --features failpoints
    mkdir -p "$target/failpoints"
    cp "$target/debug/spawnlet" "$target/debug/spawnlet-shim" "$target/failpoints/"
    points=$(cd "$target/failpoints" && pwd)
fi
# The agents are an example, which a single test target does not build.
cargo build --bins --examples

if [ "$tier" != 0 ] && [ "$only" != machine ]; then
    # Beside the rest, which waits for processes most of the time. Told when both are done.
    cargo test --lib --no-run
    log=$(mktemp)
    in_memory >"$log" 2>&1 &
    memory=$!
fi

part "Kills under load (C1, C8, D3, D4)"
it chaos::
part "Bad agents and clients, load and soak (E2, E3, F9, J1, J2, J3, J5)"
it soak::
[ "$tier" != 0 ] || exit 0

part "An abort at each named point (C2)"
SPAWNLET_FAILPOINT_BIN=$points it failpoints::

part "Processes, threads that end, numbers that are used again (D7, D8)"
it runtime::
part "Agents that do not go (D5)"
it ladder::
if [ -z "$short" ]; then
    part "Every way out of a process group, at every end (D1)"
    it escapes::
    part "A daemon that is stopped and goes on (I3)"
    it standstill::
fi
part "Mounts, devices and moved directories on a path (G4)"
it mounts::

if [ -n "$memory" ]; then
    status=0
    wait "$memory" || status=$?
    memory=
    cat "$log"
    [ "$status" = 0 ] || exit "$status"
fi

part "A full disk (C5)"
directory=$(mktemp -d)
if mount -t tmpfs -o size=8m spawnlet-small "$directory" 2>/dev/null; then
    small=$directory
    SPAWNLET_TEST_SMALL_DISK=$small cargo test --lib a_real_full_disk
    SPAWNLET_TEST_SMALL_DISK=$small it disk::full
else
    rmdir "$directory"
    skip "C5 needs root, to mount a tmpfs of 8 MiB"
fi

strace=
if strace -qq -o /dev/null -e trace=fdatasync -e inject=fdatasync:error=EIO true 2>/dev/null; then
    strace=1
fi
part "A disk that fails (C4)"
if [ -n "$strace" ]; then
    SPAWNLET_TEST_STRACE=1 it disk::fails
else
    skip "C4 on a real disk needs strace, and leave to trace"
fi
[ "$tier" = 2 ] || exit 0

part "Power cuts (C3)"
directory=$(mktemp -d)
# In memory if there is such a place: what the image's own disk is asked to sync proves nothing here
# and takes most of the time.
image=$(mktemp -p /dev/shm 2>/dev/null || mktemp)
truncate -s 96M "$image"
if mkfs.ext4 -q -F "$image" 2>/dev/null && mount -o loop "$image" "$directory" 2>/dev/null; then
    umount "$directory"
    rmdir "$directory"
    loop=$image
    SPAWNLET_TEST_POWER_IMAGE=$image it power::
else
    rm -f "$image"
    rmdir "$directory"
    skip "C3 needs root, mkfs.ext4 and loop devices"
fi

part "A wall clock that jumps (I2)"
it wall_clock::

part "A slow disk (C7)"
if [ -n "$strace" ]; then
    SPAWNLET_TEST_STRACE=1 it slow_disk::
else
    skip "C7 needs strace, and leave to trace"
fi
