//! The fuzz target `acp_line`: whatever lines an agent writes, the machine neither panics nor grows.

use std::mem::discriminant;

use super::bench::{Bench, chunk, options};
use super::lines::recorded;
use crate::fuzz::{drive, shape};

#[test]
fn fuzz_acp_line() {
    let seeds: Vec<Vec<u8>> = recorded().into_iter().map(String::into_bytes).collect();
    drive("acp_line", &seeds, [20_000, 100_000, 1_000_000], &|input| {
        let mut options = options();
        options.permissions = crate::api::agent::Permissions::Ask;
        let mut bench = Bench::running(options);
        let mut kinds = Vec::new();
        for line in input.split(|byte| *byte == b'\n') {
            bench.bytes(line);
            assert!(bench.machine.open_requests.len() <= 64);
            kinds.extend(bench.events().iter().map(discriminant));
            assert!(kinds.len() <= input.len() + 1, "events from nowhere");
        }
        if !bench.machine.is_broken {
            bench.update(chunk("still here"));
        }
        kinds.truncate(3);
        shape((kinds, bench.machine.is_broken, bench.sent.len().min(8)))
    });
}
