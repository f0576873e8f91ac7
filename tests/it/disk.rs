//! Disks that fail and disks that are full, under the built daemon: test catalogue C4 and C5.
//!
//! C4 needs strace (`SPAWNLET_TEST_STRACE`), C5 a small file system of its own
//! (`SPAWNLET_TEST_SMALL_DISK`); `scripts/chaos.sh` sees to both. Without them these tests say so and
//! do nothing.
#![allow(clippy::print_stdout, reason = "the figures are the result")]

mod fails;
mod full;
