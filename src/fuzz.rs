//! Fuzzing on the stable toolchain: test catalogue E9.
//!
//! A target is a function that takes any bytes, panics if a promise is broken, and tells the shape of
//! what it did with them. [`drive`] replays the target's corpus (`tests/corpus/TARGET`), then mutates
//! what it has, by a seed. An input that shows a new shape joins what is mutated: the shape stands
//! for the branch coverage that stable compilers do not give to a running program.
//!
//! `SPAWNLET_TIER` says how many mutations, `SPAWNLET_SEED` which, and `SPAWNLET_CORPUS=1` writes
//! inputs of new shapes (and, always, the one that broke something) into the corpus.
//!
//! Absent on purpose: sanitizers and real coverage, which need a nightly compiler.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// How long a mutated input may become.
const BYTES_MAX: usize = 16 * 1024;
/// How many inputs are kept to be mutated.
const POOL_MAX: usize = 4096;
/// New inputs that one run writes into a corpus.
const WRITTEN_MAX: usize = 64;

/// What parsers have stumbled over elsewhere.
const TOKENS: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xef\xbb\xbf",
    b"\"",
    b"\\",
    b"\\ud83d",
    b"\\u0000",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\n",
    b"\r\n",
    b"\t",
    b" ",
    b"---\n",
    b"...\n",
    b"&a ",
    b"*a",
    b"!!binary ",
    b"<<: ",
    b"? ",
    b"- ",
    b"| ",
    b"> ",
    b"null",
    b"true",
    b"-0",
    b"1e999",
    b"NaN",
    b"0x10",
    b"0o7",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"\"id\":",
    b"\"method\":",
    b"\"params\":",
    b"\"jsonrpc\":\"2.0\"",
    b"[[[[[[[[[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":",
    b"\xe2\x80\xae",
    b"\xf0\x9f\x98\x80",
];

/// The shape of something, from whatever tells it apart.
pub(crate) fn shape(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Runs a target: `iterations` for each tier. Panics with the seed and the input's place if the
/// target does.
pub(crate) fn drive(
    target: &str,
    seeds: &[Vec<u8>],
    iterations: [u64; 3],
    check: &dyn Fn(&[u8]) -> u64,
) {
    let tier = match std::env::var("SPAWNLET_TIER").as_deref() {
        Ok("1") => 1,
        Ok("2") => 2,
        Ok(_) | Err(_) => 0,
    };
    let seed = std::env::var("SPAWNLET_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let directory = corpus(target);
    let mut pool = read(&directory);
    assert!(!pool.is_empty(), "{} is empty", directory.display());
    let replayed = pool.len();
    pool.extend_from_slice(seeds);
    let grows = std::env::var_os("SPAWNLET_CORPUS").is_some();
    match run(pool, seed, iterations[tier], check) {
        Ok(new) => {
            println!(
                "{target}: seed {seed}, {replayed} of the corpus, {} mutations, {} new shapes",
                iterations[tier],
                new.len()
            );
            for input in new.iter().filter(|_| grows).take(WRITTEN_MAX) {
                std::fs::write(directory.join(format!("{:016x}", shape(input))), input).unwrap();
            }
        }
        Err(input) => {
            let path = directory.join(format!("broke-{:016x}", shape(&input)));
            std::fs::write(&path, input).unwrap();
            panic!("{target}, seed {seed}: broken by {}", path.display());
        }
    }
}

/// Inputs of new shapes, or the one that broke the target.
fn run(
    mut pool: Vec<Vec<u8>>,
    seed: u64,
    iterations: u64,
    check: &dyn Fn(&[u8]) -> u64,
) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut shapes = HashSet::new();
    let mut new = Vec::new();
    let attempt = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| check(input))).map_err(drop);
    for input in &pool {
        shapes.insert(attempt(input).map_err(|()| input.clone())?);
    }
    for _ in 0..iterations {
        let input = mutate(&pool, &mut random);
        match attempt(&input) {
            Ok(shape) if shapes.insert(shape) => {
                new.push(input.clone());
                if pool.len() < POOL_MAX {
                    pool.push(input);
                }
            }
            Ok(_) => {}
            Err(()) => return Err(input),
        }
    }
    Ok(new)
}

fn mutate(pool: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = pool.choose(random).cloned().unwrap_or_default();
    for _ in 0..random.random_range(1..5) {
        let at = random.random_range(0..=bytes.len());
        let to = random.random_range(at..=bytes.len().min(at + 32));
        match random.random_range(0..8) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            2 if at < bytes.len() => bytes[at] = random.random(),
            3 => drop(bytes.drain(at..to)),
            4 => {
                let again = bytes[at..to].repeat(random.random_range(1..20));
                drop(bytes.splice(at..at, again));
            }
            5 => {
                let other = pool.choose(random).cloned().unwrap_or_default();
                let from = random.random_range(0..=other.len());
                drop(bytes.splice(at..to, other[from..].iter().copied()));
            }
            _ => {
                let token = TOKENS.choose(random).copied().unwrap_or_default();
                drop(bytes.splice(at..at, token.iter().copied()));
            }
        }
        bytes.truncate(BYTES_MAX);
    }
    bytes
}

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(target)
}

fn read(directory: &std::path::Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    // A directory has no order; the same seed is to give the same run.
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// The negative control: defects of the kinds that parsers have are found, each by its own input.
#[test]
fn planted_defects_are_found() {
    let seeds = [br#"{"jsonrpc":"2.0","id":1,"params":{"text":"abc"}}"#.to_vec()];
    let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
    type Defect<'a> = (&'a str, &'a dyn Fn(&[u8]) -> bool);
    let defects: [Defect<'_>; 4] = [
        ("no UTF-8", &|bytes| !is_text(bytes) && bytes.starts_with(b"{")),
        ("a huge number", &|bytes| memchr::memmem::find(bytes, b":18446744073709551616").is_some()),
        ("deep", &|bytes| memchr::memmem::find(bytes, b"[[[[[[[[[[[[[[[[[[").is_some()),
        ("cut in the middle", &|bytes| bytes.ends_with(b"\"te")),
    ];
    for (name, is_hit) in defects {
        let check = |input: &[u8]| {
            assert!(!is_hit(input), "planted");
            shape((input.len() / 8, is_text(input)))
        };
        let found = run(seeds.to_vec(), 1, 100_000, &check).unwrap_err();
        assert!(is_hit(&found), "{name}");
        if name == "no UTF-8" {
            // And it is found again by the same seed.
            assert_eq!(run(seeds.to_vec(), 1, 100_000, &check).unwrap_err(), found, "{name}");
        }
    }
    assert!(run(seeds.to_vec(), 1, 1000, &|input| shape(input.len())).is_ok());
}
