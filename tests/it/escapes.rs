//! Six ways out of a process group, six ends of a process (test catalogue D1): nothing of a tree is
//! left at the moment in which the daemon says that it is over, be its agents in cgroups or not.
//!
//! Once each; with `SPAWNLET_TIER` 1 or 2 ten times each, 360 in all. What is left is found by the agent's name in command lines.

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use spawnlet::runtime::cgroup;

use crate::chaos::tier;
use crate::harness::{DEADLINE, Daemon, Home, signal, wait_gone};

/// The ways, as the scripted agent knows them, and how many processes each starts.
const STYLES: [(&str, usize); 6] =
    [("plain", 1), ("setpgid", 1), ("setsid", 1), ("double", 1), ("scrub", 1), ("storm", 200)];
/// Mounts of its own, in which no cgroup can be made; then the daemon, under the same number.
const WITHOUT_CGROUPS: [&str; 6] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "while read -r _ at kind _; do [ $kind != cgroup2 ] || umount -l $at || exit 1; done \
     < /proc/self/mounts; exec \"$@\"",
    "sh",
];

fn rounds() -> usize {
    if tier() == 0 { 1 } else { 10 }
}

/// One round: a session for each way, named after its end, the way, and the round.
struct Round<'a> {
    daemon: &'a Daemon,
    number: usize,
    has_cgroup: bool,
}

impl Round<'_> {
    /// What the sessions of this end are called; the name of each is its agent's, too.
    fn names(&self, end: &str) -> Vec<String> {
        STYLES.map(|(style, _)| format!("{end}-{style}-{:02}", self.number)).into()
    }

    /// Sessions with a prompt that escapes and goes on with `then`, once all children are up.
    fn begin(&self, end: &str, spec: &Value, then: &str) -> Vec<String> {
        let names = self.names(end);
        for (name, (style, _)) in names.iter().zip(STYLES) {
            self.daemon.agent(name, &["--cap=all"], json!({}));
            let mut spec = spec.clone();
            spec["prompt"] = json!(format!("[[escape:{style}]][[say:begun]]{then}"));
            self.daemon.session(name, name, spec);
        }
        for (name, (style, children)) in names.iter().zip(STYLES) {
            self.daemon.said(name, &format!("{name}-1"), "begun");
            assert_eq!(self.daemon.logged(name).len(), 1 + children, "{style}");
            let session = self.daemon.get(&format!("sessions/{name}"));
            let cgroup = &session["status"]["process"]["cgroup"];
            assert_eq!(cgroup.is_string(), self.has_cgroup, "{session:#}");
        }
        names
    }

    fn cancel(&self) {
        let names = self.begin("cancel", &json!({}), "[[never]]");
        for name in &names {
            self.patch(name, &json!({"spec": {"desiredState": "cancelled"}}));
        }
        for name in &names {
            self.over(name, |session| session["status"]["phase"] == "Stopped");
        }
    }

    fn ttl(&self) {
        let names = self.begin("ttl", &json!({"ttl": "1h"}), "[[never]]");
        for name in &names {
            self.patch(name, &json!({"spec": {"ttl": "1s"}}));
        }
        for name in &names {
            self.over(name, |session| session["status"]["reason"] == "TtlExpired");
        }
    }

    fn delete(&self) {
        let names = self.begin("delete", &json!({}), "[[never]]");
        for name in &names {
            let path = crate::harness::path_of(&format!("sessions/{name}"));
            assert_eq!(self.daemon.request("DELETE", &path).send().status, 200);
        }
        for name in &names {
            self.daemon.gone(&format!("sessions/{name}"));
            assert_eq!(survivors(self.daemon, name), Vec::<String>::new());
        }
    }

    fn crash(&self) {
        // Not by itself: then its answer might not come to be read.
        let names = self.begin("crash", &json!({}), "[[never]]");
        for name in &names {
            signal(process(self.daemon, name).1, Signal::ABORT);
        }
        for name in &names {
            let turn = self.daemon.ended(&format!("{name}-1"));
            assert_eq!(turn["status"]["code"], "AGENT_PROCESS_INVALIDATED", "{turn:#}");
            self.over(name, |_| true);
        }
    }

    /// The end of a pause, and then a start that takes too long; children come with each start.
    fn idle_and_start(&self) {
        let names = self.names("start");
        for (name, (style, _)) in names.iter().zip(STYLES) {
            let state = format!("--state={}", self.daemon.path("state").display());
            let flags = ["--cap=all", &state, "--silent=resume", &format!("--escape={style}")];
            self.daemon.agent(name, &flags, json!({}));
            self.daemon.session(name, name, json!({"idleTimeout": "300ms", "prompt": "[[count]]"}));
        }
        for (name, (_, children)) in names.iter().zip(STYLES) {
            self.over(name, |session| session["status"]["phase"] == "Hibernated");
            assert_eq!(self.daemon.logged(name).len(), 1 + children, "{name}");
        }
        for name in &names {
            let patch = json!({"spec": {"startTimeout": "2s"}});
            assert_eq!(self.daemon.patch(&format!("agents/{name}"), &patch).status, 200);
            let body = json!({"metadata": {"name": format!("{name}-2")},
                "spec": {"session": name, "prompt": "[[say:never]]"}});
            assert_eq!(self.daemon.create("turns", &body).status, 201);
        }
        for name in &names {
            let turn = self.daemon.ended(&format!("{name}-2"));
            assert_eq!(turn["status"]["code"], "SPAWN_AGENT_START_FAILED", "{turn:#}");
            self.over(name, |session| session["status"]["restarts"]["reason"] == "StartTimeout");
            assert!(self.daemon.logged(name).len() > 2, "{name}");
        }
    }

    fn patch(&self, name: &str, patch: &Value) {
        let answer = self.daemon.patch(&format!("sessions/{name}"), patch);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Waits until the daemon says that it is over, and looks at once: not "soon".
    fn over(&self, name: &str, is_over: impl Fn(&Value) -> bool) {
        self.daemon.until(&format!("sessions/{name}"), |session| {
            session["status"]["process"].is_null() && is_over(session)
        });
        assert_eq!(survivors(self.daemon, name), Vec::<String>::new());
    }
}

/// What is alive of an agent's tree.
fn survivors(daemon: &Daemon, agent: &str) -> Vec<String> {
    let mut found = daemon.processes();
    found.retain(|line| line.contains(agent));
    found
}

/// The numbers of a session's shim and agent.
fn process(daemon: &Daemon, session: &str) -> (u32, u32) {
    let session = daemon.get(&format!("sessions/{session}"));
    let number = |name: &str| {
        let number = session["status"]["process"][name].as_u64();
        u32::try_from(number.unwrap_or_else(|| panic!("no {name} in {session:#}"))).unwrap()
    };
    (number("shimPid"), number("pid"))
}

fn every_end(daemon: &Daemon, has_cgroup: bool) {
    for number in 0..rounds() {
        let round = Round { daemon, number, has_cgroup };
        round.cancel();
        round.ttl();
        round.delete();
        round.crash();
        round.idle_and_start();
    }
    assert_eq!(daemon.processes(), Vec::<String>::new());
}

/// A daemon whose agents have no cgroups, on any machine where that can be had.
fn without_cgroups() -> Option<Daemon> {
    if cgroup::detect().is_none() {
        return Some(Daemon::start());
    }
    let (program, words) = WITHOUT_CGROUPS.split_first().unwrap();
    let can = std::process::Command::new(program).args(words).arg("true").output();
    if !can.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: there are cgroups here, and no way to do without (unshare, as root)");
        return None;
    }
    Some(Home::new().serve_under(&WITHOUT_CGROUPS, &[]))
}

#[test]
fn no_escape_survives_any_end_where_shims_keep_the_trees() {
    let Some(daemon) = without_cgroups() else { return };
    every_end(&daemon, false);
}

#[test]
fn no_escape_survives_any_end_where_cgroups_keep_the_trees() {
    if cgroup::detect().is_none() {
        eprintln!("skipped: no writable cgroup v2 directory");
        return;
    }
    every_end(&Daemon::start(), true);
}

/// The negative control: the same judge, where a process group is all that is killed.
#[test]
fn with_the_process_group_alone_most_escapes_survive() {
    let Some(daemon) = without_cgroups() else { return };
    let round = Round { daemon: &daemon, number: 0, has_cgroup: false };
    let names = round.begin("group", &json!({}), "[[never]]");
    let known: Vec<_> = names.iter().map(|name| process(&daemon, name)).collect();
    // Nobody but the test does anything.
    signal(daemon.pid(), Signal::STOP);
    for (shim, _) in &known {
        signal(*shim, Signal::STOP);
    }
    for (_, agent) in &known {
        let group = Pid::from_raw((*agent).try_into().unwrap()).unwrap();
        kill_process_group(group, Signal::KILL).unwrap();
        assert!(wait_gone(*agent, DEADLINE));
    }
    let survived: Vec<_> =
        names.iter().filter(|name| !survivors(&daemon, name).is_empty()).collect();
    for number in known.iter().map(|(shim, _)| *shim).chain([daemon.pid()]) {
        signal(number, Signal::CONT);
    }
    assert!(survived.len() >= 4, "only {survived:?} of 6 survived");
    let home = daemon.kill9();
    home.no_process();
}
