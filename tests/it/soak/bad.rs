//! Bad agents beside good ones (E2, E3).

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;

use super::rig::{Rig, peak_kib};
use crate::chaos::tree::hold;
use crate::chaos::{seed, tier, wait_for};

const HEALTHY: usize = 7;
/// What a flood may cost the daemon (P13).
const FLOOD_KIB_MAX: u64 = 32 * 1024;
/// How long a look at another session may take (P12), at the 99th of a hundred.
const LOOK_MAX: Duration = Duration::from_millis(250);

/// Lines that are no JSON, or the wrong JSON, and now and then a good one.
fn malformed(random: &mut StdRng, lines: usize) -> String {
    let bad = [
        "[[garbage:20]]",
        "[[raw:{\"jsonrpc\":\"2.0\",\"id\":99999999999999999999,\"result\":{}}]]",
        "[[raw:{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":7}]]",
        "[[raw:{\"jsonrpc\":\"2.0\",\"method\":\"session/update\"]]",
        "[[raw:{\"id\":{\"a\":1},\"method\":\"fs/read_text_file\"}]]",
        "[[raw:\u{feff}\u{202e}]]",
        "[[foreign]]",
        "[[answer:12345]]",
        "[[say:good]]",
    ];
    let mut prompt = String::new();
    let mut written = 0;
    while written < lines {
        let next = bad[random.random_range(0..bad.len())];
        written += if next.contains("garbage") { 20 } else { 1 };
        prompt.push_str(next);
    }
    prompt
}

/// The turns that did not end as they would have alone.
fn disturbed<'a>(rig: &mut Rig, turns: &'a [String]) -> Vec<&'a str> {
    turns.iter().filter(|turn| rig.end_of(turn) != "Completed").map(String::as_str).collect()
}

/// E2: 2000 malformed lines through a real process, 20 times, while seven others work.
#[test]
fn malformed_lines_of_one_agent_disturb_nobody_else() {
    let rounds = [1, 20, 20][tier()];
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let mut rig = Rig::new(&[]);
    let mut ends = std::collections::BTreeMap::<String, usize>::new();
    for healthy in 0..HEALTHY {
        rig.session(&format!("good{healthy}"), &json!({}));
    }
    for round in 0..rounds {
        let bad = format!("bad{round}");
        rig.session(&bad, &json!({"prompt": malformed(&mut random, 2000)}));
        let turns: Vec<String> = (0..HEALTHY)
            .map(|healthy| rig.turn(&format!("good{healthy}"), "[[updates:50]][[say:fine]]"))
            .collect();
        assert_eq!(disturbed(&mut rig, &turns), [""; 0], "seed {seed}, round {round}");
        *ends.entry(rig.end_of(&format!("{bad}-1"))).or_default() += 1;
        rig.delete(&bad);
    }
    println!("E2: {rounds} x 2000 lines, seed {seed}: the bad agents' turns ended {ends:?}");
    rig.stop();
}

/// The negative control of E2: a session whose agent is killed in its turn, beside others that are left
/// alone, is found, and no other is.
#[test]
fn a_session_that_is_disturbed_is_found() {
    let mut rig = Rig::new(&[]);
    for name in ["good", "hit"] {
        rig.session(name, &json!({}));
    }
    let hit = rig.turn("hit", "[[say:here]][[never]]");
    let good = rig.turn("good", "[[updates:50]][[say:fine]]");
    wait_for("the agent has its prompt", || {
        let (_, turn) = rig.get(&format!("turns/{hit}"));
        (turn["status"]["delivery"] == "Sent").then_some(())
    });
    let uid = rig.get("sessions/hit").1["metadata"]["uid"].as_str().unwrap().to_owned();
    let mut killed = 0;
    for sighting in rig.world.alive() {
        if sighting.session() == Some(uid.as_str()) && !sighting.is_shim {
            let held = hold(sighting.pid).unwrap();
            rustix::process::pidfd_send_signal(&held, rustix::process::Signal::KILL).unwrap();
            killed += 1;
        }
    }
    assert!(killed > 0);
    let turns = [good, hit.clone()];
    assert_eq!(disturbed(&mut rig, &turns), [hit.as_str()]);
    rig.stop();
}

/// What is wrong with the memory that a flood cost (P13).
fn fault(grown_kib: u64) -> Option<String> {
    (grown_kib >= FLOOD_KIB_MAX).then(|| format!("+{grown_kib} KiB"))
}

/// E3: floods, while somebody looks at another session.
#[test]
fn floods_cost_little_memory_and_hold_nobody_up() {
    // Bytes without a newline, tiny updates, bytes on standard error.
    let sizes: [[u64; 3]; 3] =
        [[16 << 20, 2_000, 8 << 20], [256 << 20, 50_000, 128 << 20], [2 << 30, 1_000_000, 1 << 30]];
    let [bytes, updates, errors] = sizes[tier()];
    let mut rig = Rig::new(&[]);
    rig.warm_up();
    rig.session("other", &json!({"prompt": "[[say:here]]"}));
    rig.end_of("other-1");
    let floods = [
        ("stdout", format!("[[flood:{bytes}]]")),
        ("updates", format!("[[updates:{updates}]]")),
        ("stderr", format!("[[stderr:{errors}]][[say:done]]")),
    ];
    for (name, prompt) in floods {
        let base = peak_kib(rig.daemon.pid());
        let begun = Instant::now();
        rig.session(name, &json!({"prompt": prompt}));
        let mut looks = Vec::new();
        let phase = loop {
            let at = Instant::now();
            let (code, _) = rig.get("sessions/other");
            looks.push(at.elapsed());
            assert_eq!(code, 200);
            let (_, turn) = rig.get(&format!("turns/{name}-1"));
            if turn["status"]["finishedAt"].is_string() {
                break turn["status"]["phase"].clone();
            }
            assert!(begun.elapsed() < Duration::from_secs(900), "{name} does not end");
        };
        looks.sort_unstable();
        let p99 = looks[looks.len() * 99 / 100];
        let grown = peak_kib(rig.daemon.pid()).saturating_sub(base);
        println!(
            "E3 {name}: {phase} after {:?}; peak memory +{grown} KiB; {} looks, p99 {p99:?}",
            begun.elapsed(),
            looks.len()
        );
        assert_eq!(fault(grown), None, "{name}");
        assert!(tier() < 2 || p99 < LOOK_MAX, "{name}: {p99:?}");
        rig.delete(name);
    }
    rig.stop();
}

/// What tells [`the_reader_of_whole_lines`] that it is the one.
const READER: &str = "SPAWNLET_TEST_READS_WHOLE_LINES";
/// What that one says once it is there.
const READING: &str = "reading a line";
/// Twice the bound; the floods of tiers 1 and 2 are longer.
const LINE_BYTES: usize = 64 << 20;

/// The negative control of E3: a program that takes a line as long as it comes costs more than the
/// bound, in the same measure.
#[test]
fn a_reader_of_whole_lines_exceeds_the_bound() {
    let mut reader = Command::new(std::env::current_exe().unwrap())
        .args(["soak::bad::the_reader_of_whole_lines", "--exact", "--nocapture"])
        .env(READER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(reader.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(told.any(|line| line.contains(READING)));
    let base = peak_kib(reader.id());
    let mut stdin = reader.stdin.take().unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..LINE_BYTES / piece.len() {
        stdin.write_all(&piece).unwrap();
    }
    let grown = peak_kib(reader.id()).saturating_sub(base);
    println!("E3, the control: a line of {} MiB cost +{grown} KiB", LINE_BYTES >> 20);
    drop(stdin);
    assert!(fault(grown).is_some(), "+{grown} KiB");
    assert!(told.any(|line| line.contains("test result: ok")));
    assert!(reader.wait().unwrap().success());
}

/// The program of that control: this test binary once more. Otherwise it does nothing.
#[test]
fn the_reader_of_whole_lines() {
    if std::env::var_os(READER).is_none() {
        return;
    }
    println!("{READING}");
    let mut line = String::new();
    assert_eq!(std::io::stdin().lock().read_line(&mut line).unwrap(), LINE_BYTES);
}
