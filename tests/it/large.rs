//! A large prompt and a large answer go through whole, and the daemon does not grow with them.

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::harness::Daemon;

/// About 20 s in a debug build.
const ANSWER_BYTES: usize = 100 * 1024 * 1024;
/// What the daemon may grow by (11 MiB were measured): far below the answer in one piece, and
/// above what its bounded buffers and the store's caches hold.
const GROWTH_KIB_MAX: u64 = 32 * 1024;
const PROMPT_BYTES: usize = 700 * 1024;

/// What the scripted agent says to `[[big:BYTES]]`, as a digest.
fn digest_of_big(bytes: usize) -> String {
    let mut hash = Sha256::new();
    let (mut left, mut line) = (bytes, 0_usize);
    while left > 0 {
        let text = format!("{line:016} {:.<46}\n", "");
        hash.update(&text.as_bytes()[..text.len().min(left)]);
        left -= text.len().min(left);
        line += 1;
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_prompt_of_700_kib_and_a_long_answer_go_through_whole_in_bounded_memory() {
    let daemon = Daemon::start();
    let log = format!("--prompt-log={}", daemon.path("log/prompts").display());
    daemon.agent("plain", &["--cap=all", &log], json!({}));
    daemon.session("large", "plain", json!({"prompt": "[[say:warm]]"}));
    daemon.phase("large", "Idle");
    let base = daemon.peak_kib();

    let line = "A line of the prompt with \"quotes\", a tab \t and an umlaut \u{e4}.\n";
    let prompt: String = line.chars().cycle().take(PROMPT_BYTES).collect();
    let ran = daemon.cli_with(&["prompt", "large", "-"], prompt.as_bytes());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.trim_end() == format!("echo: {prompt}").trim_end(), "it came back changed");
    let entry = daemon.logged("prompts").pop().unwrap();
    assert_eq!(entry["bytes"].as_u64().unwrap(), prompt.len() as u64);

    let turn = daemon.ask("large", &format!("[[big:{ANSWER_BYTES}]]"));
    assert_eq!(turn["status"]["phase"], "Completed", "{turn:#}");
    assert_eq!(turn["status"]["responseBytes"].as_u64().unwrap(), ANSWER_BYTES as u64);
    let name = turn["metadata"]["name"].as_str().unwrap();
    let answer = daemon.response(name);
    assert_eq!(answer.len(), ANSWER_BYTES);
    assert_eq!(hex(&Sha256::digest(answer.as_bytes())), digest_of_big(ANSWER_BYTES));
    let grown = daemon.peak_kib().saturating_sub(base);
    assert!(grown < GROWTH_KIB_MAX, "the daemon grew by {grown} KiB, from {base} KiB");
}

#[test]
fn a_prompt_over_the_limit_is_refused() {
    let daemon = Daemon::start();
    daemon.agent("plain", &["--cap=all"], json!({}));
    daemon.session("one", "plain", json!({}));
    let body = json!({"spec": {"session": "one", "prompt": "x".repeat(768 * 1024 + 1)}});
    let answer = daemon.create("turns", &body);
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert!(answer.text().contains("spec.prompt"), "{}", answer.text());
    let body = json!({"spec": {"agent": "plain", "cwd": "/", "prompt": "x".repeat(64 * 1024 + 1)}});
    let answer = daemon.create("sessions", &body);
    assert_eq!(answer.status, 422, "{}", answer.text());
    let body = json!({"spec": {"session": "one", "prompt": "x".repeat(3 * 1024 * 1024)}});
    assert_eq!(daemon.create("turns", &body).status, 413);
}
