//! The load: callers that make, cancel, stop and delete sessions and turns at random, and tell the
//! judge how each call came out.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use super::http::{Client, NoAnswer};
use super::judge::{End, Item, Judge, Kind, Op, Outcome, first_turn};

/// Callers at once, each with a connection of its own.
pub(super) const CALLERS: usize = 4;
/// Sessions beyond which more are deleted than made.
const SESSIONS_MAX: usize = 14;
/// Turns that are remembered to be cancelled, looked at or deleted.
const TURNS_MAX: usize = 60;

/// What the callers share over all the deaths of their daemon.
pub(super) struct Load {
    seed: u64,
    work: String,
    pub(super) judge: Mutex<Judge>,
    sessions: Mutex<Vec<String>>,
    turns: Mutex<Vec<String>>,
    next: AtomicU64,
    pub(super) calls: AtomicU64,
    pub(super) unanswered: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// What a caller tells of itself.
pub(super) enum Told {
    Answered,
    /// The daemon does not answer any more.
    Gone,
}

/// Why a caller stops: the daemon is gone.
struct Gone;

impl Load {
    pub(super) fn new(seed: u64, work: String) -> Self {
        Self {
            seed,
            work,
            judge: Mutex::default(),
            sessions: Mutex::default(),
            turns: Mutex::default(),
            next: AtomicU64::new(1),
            calls: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Calls until the daemon is gone.
    pub(super) fn call_until_gone(
        &self,
        round: u64,
        caller: usize,
        mut client: Client,
        told: &SyncSender<Told>,
    ) {
        let seed = self.seed ^ (round << 8) ^ (caller as u64);
        let mut random = StdRng::seed_from_u64(seed);
        while self.step(&mut random, caller, &mut client).is_ok() {
            // Whoever has killed the daemon does not listen any more.
            let _ = told.send(Told::Answered);
        }
        let _ = told.send(Told::Gone);
    }

    fn step(&self, random: &mut StdRng, caller: usize, client: &mut Client) -> Result<(), Gone> {
        let dice = random.random_range(0..100);
        let session = self.sessions.lock().unwrap().choose(random).cloned();
        let turn = self.turns.lock().unwrap().choose(random).cloned();
        let sessions = self.sessions.lock().unwrap().len();
        match (dice, session, turn) {
            (0..15, _, _) if sessions < SESSIONS_MAX => self.create_session(random, client),
            (0..15, Some(session), _) => self.delete(client, Kind::Session, session),
            (15..60, Some(session), _) => self.create_turn(random, client, session),
            (60..70, _, Some(turn)) => self.cancel(client, Kind::Turn, turn),
            (70..74, Some(session), _) => self.cancel(client, Kind::Session, session),
            (74..79, Some(session), _) => self.delete(client, Kind::Session, session),
            (79..84, _, Some(turn)) => self.delete(client, Kind::Turn, turn),
            (84..92, Some(session), _) => self.label(client, caller, session),
            (92..100, _, Some(turn)) => self.look(client, &turn),
            _ => self.create_session(random, client),
        }
    }

    /// One call, told to the judge in the order of the answers.
    fn call(
        &self,
        client: &mut Client,
        op: Op,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<bool, Gone> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let answer = client.call(method, path, body);
        let mut judge = self.judge.lock().unwrap();
        let outcome = match answer {
            Ok((200..=299, object)) => {
                Outcome::Ok(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
            }
            Ok((code @ 400..=499, _)) => {
                debug_assert!(code != 401 && code != 400, "{method} {path}: {code}");
                self.refused.fetch_add(1, Ordering::Relaxed);
                Outcome::Fail
            }
            Ok((code, answer)) => {
                judge.faults.push(format!("{method} {path}: answered {code}: {answer}"));
                Outcome::Unknown
            }
            Err(NoAnswer::NotSent) => return Err(Gone),
            Err(NoAnswer::Broken) => {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                judge.take_call(&op, &Outcome::Unknown);
                return Err(Gone);
            }
        };
        judge.take_call(&op, &outcome);
        Ok(matches!(outcome, Outcome::Ok(_)))
    }

    fn create_session(&self, random: &mut StdRng, client: &mut Client) -> Result<(), Gone> {
        let name = format!("s{}", self.next.fetch_add(1, Ordering::Relaxed));
        let agent = *["resuming", "resuming", "loading", "forgetful"].choose(random).unwrap();
        let mut spec = json!({"agent": agent, "cwd": self.work});
        let has_prompt = random.random_bool(0.6);
        if has_prompt {
            spec["prompt"] = prompt(random, &first_turn(&name)).into();
        }
        if random.random_bool(0.3) {
            spec["onSessionLost"] = "new".into();
        }
        let body = json!({"metadata": {"name": name}, "spec": spec});
        let op = Op::CreateSession { name: name.clone(), has_prompt };
        if self.call(client, op, "POST", &collection(Kind::Session), Some(&body))? {
            if has_prompt {
                self.remember_turn(first_turn(&name));
            }
            self.sessions.lock().unwrap().push(name);
        }
        Ok(())
    }

    fn create_turn(
        &self,
        random: &mut StdRng,
        client: &mut Client,
        session: String,
    ) -> Result<(), Gone> {
        let name = format!("t{}", self.next.fetch_add(1, Ordering::Relaxed));
        let prompt = prompt(random, &name);
        let body = json!({"metadata": {"name": name},
            "spec": {"session": session, "prompt": prompt}});
        let op = Op::CreateTurn { name: name.clone(), session };
        if self.call(client, op, "POST", &collection(Kind::Turn), Some(&body))? {
            self.remember_turn(name);
        }
        Ok(())
    }

    fn remember_turn(&self, name: String) {
        let mut turns = self.turns.lock().unwrap();
        if turns.len() >= TURNS_MAX {
            turns.remove(0);
        }
        turns.push(name);
    }

    fn cancel(&self, client: &mut Client, kind: Kind, name: String) -> Result<(), Gone> {
        let path = item(kind, &name);
        let body = json!({"spec": {"desiredState": "cancelled"}});
        self.call(client, Op::Cancel { kind, name }, "PATCH", &path, Some(&body)).map(drop)
    }

    fn delete(&self, client: &mut Client, kind: Kind, name: String) -> Result<(), Gone> {
        match kind {
            Kind::Session => self.sessions.lock().unwrap().retain(|known| *known != name),
            Kind::Turn => self.turns.lock().unwrap().retain(|known| *known != name),
        }
        let path = item(kind, &name);
        self.call(client, Op::Delete { kind, name }, "DELETE", &path, None).map(drop)
    }

    fn label(&self, client: &mut Client, caller: usize, session: String) -> Result<(), Gone> {
        let value = self.next.fetch_add(1, Ordering::Relaxed);
        let path = item(Kind::Session, &session);
        let label = format!("chaos-{caller}");
        let body = json!({"metadata": {"labels": {label: value.to_string()}}});
        self.call(client, Op::Label { session, caller, value }, "PATCH", &path, Some(&body))
            .map(drop)
    }

    fn look(&self, client: &mut Client, turn: &str) -> Result<(), Gone> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match client.call("GET", &item(Kind::Turn, turn), None) {
            Ok((200, object)) => self.judge.lock().unwrap().take_item(&read(Kind::Turn, &object)),
            Ok(_) => {}
            Err(_) => return Err(Gone),
        }
        Ok(())
    }
}

/// What an agent is to do in a turn. It begins with the turn's name, for the prompt log.
fn prompt(random: &mut StdRng, turn: &str) -> String {
    let ms = random.random_range(1..300);
    let act = match random.random_range(0..100) {
        0..45 => String::new(),
        45..65 => format!("[[sleep:{ms}]]"),
        65..72 => format!("[[escape:setsid]][[sleep:{ms}]]"),
        72..77 => format!("[[escape:double]][[sleep:{ms}]]"),
        77..80 => format!("[[escape:scrub]][[sleep:{ms}]]"),
        80..83 => format!("[[escape:hold]][[escape:setpgid]][[sleep:{ms}]]"),
        83..88 => "[[big:200000]]".to_owned(),
        88..92 => "[[tool:Reads:read:/]][[ask:edit:/]]".to_owned(),
        92..94 => "[[exit:3]]".to_owned(),
        94..96 => "[[error:-32603:no]]".to_owned(),
        _ => "[[escape:setsid]][[never]]".to_owned(),
    };
    format!("{turn}: {act}")
}

/// The turn of a logged prompt.
pub(super) fn turn_of(prompt: &str) -> String {
    prompt.split(':').next().unwrap_or_default().to_owned()
}

pub(super) fn collection(kind: Kind) -> String {
    match kind {
        Kind::Session => "namespaces/default/sessions".to_owned(),
        Kind::Turn => "namespaces/default/turns".to_owned(),
    }
}

pub(super) fn item(kind: Kind, name: &str) -> String {
    format!("{}/{name}", collection(kind))
}

/// All objects of a kind.
pub(super) fn list(client: &mut Client, kind: Kind) -> Vec<Item> {
    let (code, list) = client.call("GET", &collection(kind), None).expect("a list");
    assert_eq!(code, 200, "{list}");
    list["items"].as_array().expect("items").iter().map(|object| read(kind, object)).collect()
}

const FINAL: [&str; 6] =
    ["Completed", "Failed", "Cancelled", "Expired", "Interrupted", "Discarded"];

fn read(kind: Kind, object: &Value) -> Item {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let wanted = text("/spec/desiredState").unwrap_or_default();
    let labels = object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let labels: BTreeMap<usize, u64> = labels
        .iter()
        .filter_map(|(name, value)| {
            Some((name.strip_prefix("chaos-")?.parse().ok()?, value.as_str()?.parse().ok()?))
        })
        .collect();
    let phase = text("/status/phase").unwrap_or_default();
    let status = &object["status"];
    let is_ended = kind == Kind::Turn && FINAL.contains(&phase.as_str());
    let end = is_ended.then(|| End {
        phase,
        delivery: text("/status/delivery").unwrap_or_default(),
        rest: json!([status["code"], status["stopReason"], status["finishedAt"]]).to_string(),
    });
    Item {
        kind,
        name: text("/metadata/name").unwrap_or_default(),
        uid: text("/metadata/uid").unwrap_or_default(),
        session: text("/spec/session"),
        is_endless: text("/spec/prompt").is_some_and(|prompt| prompt.contains("[[never]]")),
        is_being_deleted: text("/metadata/deletionTimestamp").is_some(),
        is_cancelled: wanted != "running",
        labels,
        end,
    }
}
