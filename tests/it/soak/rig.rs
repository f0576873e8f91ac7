//! A daemon, a connection to it, and what is done over it.

use std::path::Path;

use serde_json::{Value, json};

use crate::chaos::daemon::{Daemon, World};
use crate::chaos::http::Client;
use crate::chaos::wait_for;

const NAMESPACE: &str = "namespaces/default";
const FINAL: [&str; 6] =
    ["Completed", "Failed", "Cancelled", "Expired", "Interrupted", "Discarded"];

pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) daemon: Daemon,
    pub(crate) client: Client,
}

/// What a process has of the machine. The store's own files are left out: it opens connections to
/// read by when it first needs them, a few, and keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) files: usize,
    pub(crate) threads: usize,
    pub(crate) zombies: usize,
}

fn count(path: &str, is_counted: impl Fn(&Path) -> bool) -> usize {
    let entries = std::fs::read_dir(path).unwrap().flatten();
    entries.filter(|entry| is_counted(&entry.path())).count()
}

fn is_of_the_store(file: &Path) -> bool {
    let target = std::fs::read_link(file).unwrap_or_default();
    target.file_name().is_some_and(|name| name.to_string_lossy().starts_with("store.db"))
}

pub(crate) fn held(pid: u32) -> Held {
    Held {
        files: count(&format!("/proc/{pid}/fd"), |file| !is_of_the_store(file)),
        threads: count(&format!("/proc/{pid}/task"), |_| true),
        zombies: crate::chaos::tree::zombies(pid).len(),
    }
}

/// A line of `/proc/PID/status` in KiB.
fn status_kib(pid: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub(crate) fn memory_kib(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:")
}

pub(crate) fn peak_kib(pid: u32) -> u64 {
    status_kib(pid, "VmHWM:")
}

/// Ticks of the processor that a process has had: a hundredth of a second each.
pub(crate) fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

impl Rig {
    pub(crate) fn new(settings: &[&str]) -> Self {
        // Whoever looks all the time is not to be held back.
        let all = [&["http.perTokenRate=100000/s"], settings].concat();
        let world = World::new(&all);
        let daemon = world.start_ready();
        let client = world.connect(&daemon);
        Self { world, daemon, client }
    }

    pub(crate) fn get(&mut self, object: &str) -> (u16, Value) {
        self.client.call("GET", &format!("{NAMESPACE}/{object}"), None).unwrap()
    }

    pub(crate) fn list(&mut self, collection: &str) -> Vec<Value> {
        self.get(collection).1["items"].as_array().cloned().unwrap_or_default()
    }

    /// Makes a session of the agent `forgetful`, or of the one that the spec names.
    pub(crate) fn session(&mut self, name: &str, spec: &Value) {
        let mut whole = json!({"agent": "forgetful", "cwd": self.world.text("work")});
        for (key, value) in spec.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let body = json!({"metadata": {"name": name}, "spec": whole});
        let path = format!("{NAMESPACE}/sessions");
        let (code, answer) = self.client.call("POST", &path, Some(&body)).unwrap();
        assert_eq!(code, 201, "{answer}");
    }

    pub(crate) fn turn(&mut self, session: &str, prompt: &str) -> String {
        let body = json!({"spec": {"session": session, "prompt": prompt}});
        let path = format!("{NAMESPACE}/turns");
        let (code, answer) = self.client.call("POST", &path, Some(&body)).unwrap();
        assert_eq!(code, 201, "{answer}");
        answer["metadata"]["name"].as_str().unwrap().to_owned()
    }

    pub(crate) fn cancel(&mut self, turn: &str) {
        let body = json!({"spec": {"desiredState": "cancelled"}});
        let path = format!("{NAMESPACE}/turns/{turn}");
        let (code, answer) = self.client.call("PATCH", &path, Some(&body)).unwrap();
        // Its session's ttl may have ended it.
        assert!([200, 404, 409, 422].contains(&code), "{answer}");
    }

    pub(crate) fn delete(&mut self, session: &str) {
        let path = format!("{NAMESPACE}/sessions/{session}");
        let (code, answer) = self.client.call("DELETE", &path, None).unwrap();
        assert!([200, 202, 404].contains(&code), "{answer}");
    }

    /// Waits for the end of a turn: its phase.
    pub(crate) fn end_of(&mut self, turn: &str) -> String {
        wait_for(&format!("{turn} ends"), || {
            let (_, found) = self.get(&format!("turns/{turn}"));
            let phase = found["status"]["phase"].as_str().unwrap_or_default().to_owned();
            FINAL.contains(&phase.as_str()).then_some(phase)
        })
    }

    pub(crate) fn wait_until_all_turns_are_final(&mut self) {
        wait_for("all turns are final", || {
            let turns = self.list("turns");
            let phase = |turn: &Value| turn["status"]["phase"].as_str().unwrap().to_owned();
            turns.iter().all(|turn| FINAL.contains(&phase(turn).as_str())).then_some(())
        });
    }

    pub(crate) fn wait_until_empty(&mut self) {
        wait_for("all sessions are gone", || self.list("sessions").is_empty().then_some(()));
        assert_eq!(self.world.alive().len(), 0, "processes are left");
    }

    /// A few sessions, to their end.
    pub(crate) fn warm_up(&mut self) {
        for number in 0..12 {
            self.session(&format!("w{number}"), &json!({"prompt": "[[say:warm]]"}));
        }
        self.wait_until_all_turns_are_final();
        for number in 0..12 {
            self.delete(&format!("w{number}"));
        }
        self.wait_until_empty();
    }

    /// Stops it; what is on disk stays until the world is dropped.
    pub(crate) fn stop(mut self) -> World {
        assert!(self.daemon.stop().success(), "the daemon stops in order");
        self.world
    }
}
