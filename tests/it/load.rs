//! Many calls of `prompt_to_agent`: none fails, each prompt is given once, and the daemon is as
//! large afterwards as before.
//!
//! 200 calls over 20 sessions of 4 callers, 8 at a time; 1000 of them with `SPAWNLET_TIER` 1 or 2.
//! The workers keep to the limits by themselves (one turn at a time each), so that every refusal
//! is a fault; what happens at full capacity is tried afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::chaos::{tier, wait_for};
use crate::harness::{Caller, Daemon};

const CALLERS: usize = 4;
/// Turns of one caller at a time. All of them are as many as may run in all.
const WORKERS_OF_A_CALLER: usize = 2;
/// Sessions of one caller: three of its first worker, two of the second.
const SESSIONS_OF_A_CALLER: usize = 5;
/// The most turns of one caller at a time (`limits.maxActiveTurnsPerParent`).
const TURNS_OF_A_CALLER_MAX: usize = 4;
/// What the daemon may grow by between the warm-up and the end, in KiB and in percent.
const GROWTH_KIB_MAX: u64 = 4096;
const GROWTH_PERCENT_MAX: u64 = 10;

/// A session of a worker's.
struct Child {
    uid: Value,
    name: String,
    turns: usize,
}

/// One of those who call, with sessions of its own.
struct Worker {
    id: usize,
    daemon: Arc<Daemon>,
    caller: Arc<Caller>,
    sessions_max: usize,
    children: Vec<Child>,
    calls: usize,
}

impl Worker {
    async fn run(mut self, calls: usize) -> Self {
        for _ in 0..calls {
            self.call().await;
        }
        self
    }

    /// A prompt in the next session, in the foreground or the background, and its answer.
    async fn call(&mut self) {
        let call = self.calls;
        self.calls += 1;
        let at = call % self.sessions_max;
        let said = format!("worker {} call {call} aä€😀", self.id);
        // Some take a while, so that turns do overlap.
        let prompt = format!("[[sleep:{}]][[say:{said}]]", (call % 4) * 15);
        let in_background = (call / self.sessions_max) % 2 == 1;
        let mut arguments = json!({"agentId": "a", "prompt": prompt, "background": in_background});
        if let Some(child) = self.children.get(at) {
            arguments["sessionId"] = child.uid.clone();
        }
        let told = self.caller.prompt(&arguments).await;
        let uid = told["sessionId"].clone();
        if self.children.len() == at {
            let name = session_name(&self.daemon, &uid);
            self.children.push(Child { uid: uid.clone(), name, turns: 0 });
        }
        let child = &mut self.children[at];
        assert_eq!(uid, child.uid, "{told:#}");
        child.turns += 1;
        if !in_background {
            assert_eq!(told["status"], "completed", "{told:#}");
            assert_eq!(told["content"], said.as_str());
            return;
        }
        assert_eq!(told["status"], "accepted", "{told:#}");
        let turn = format!("{}-{}", child.name, child.turns);
        let daemon = Arc::clone(&self.daemon);
        let ended = tokio::task::spawn_blocking(move || daemon.ended(&turn)).await.unwrap();
        assert_eq!(ended["metadata"]["uid"], told["turnId"], "{ended:#}");
        let status = self.caller.status(&uid).await;
        assert_eq!(status["status"], "idle", "{status:#}");
        assert_eq!(status["latestTurnId"], told["turnId"], "{status:#}");
        let read = self.caller.read(&uid, &status["latestResponseId"], 65_536).await;
        assert_eq!(read, said);
    }
}

fn session_name(daemon: &Daemon, uid: &Value) -> String {
    let path = "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions";
    let list = daemon.request("GET", path).send().json();
    let mut items = list["items"].as_array().unwrap().iter();
    let found = items.find(|item| item["metadata"]["uid"] == *uid).unwrap();
    found["metadata"]["name"].as_str().unwrap().to_owned()
}

/// What the daemon has of the machine. The store's own files are left out: it opens connections to
/// read by when it first needs them, a few, and keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    files: usize,
    threads: usize,
    zombies: usize,
}

fn count(path: &str, is_counted: impl Fn(&Path) -> bool) -> usize {
    let entries = std::fs::read_dir(path).unwrap().flatten();
    entries.filter(|entry| is_counted(&entry.path())).count()
}

fn is_of_the_store(file: &Path) -> bool {
    let target = std::fs::read_link(file).unwrap_or_default();
    target.file_name().is_some_and(|name| name.to_string_lossy().starts_with("store.db"))
}

fn held(pid: u32) -> Held {
    let zombies = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(&pid.to_string())
    });
    Held {
        files: count(&format!("/proc/{pid}/fd"), |file| !is_of_the_store(file)),
        threads: count(&format!("/proc/{pid}/task"), |_| true),
        zombies: zombies.count(),
    }
}

fn memory_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// So many calls, shared among the workers, who work at the same time.
async fn work(workers: Vec<Worker>, calls: usize) -> Vec<Worker> {
    let share = calls / workers.len();
    let mut tasks = JoinSet::new();
    for worker in workers {
        tasks.spawn(worker.run(share));
    }
    let mut workers = tasks.join_all().await;
    workers.sort_by_key(|worker| worker.id);
    workers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_all_succeed_once_each_and_leave_nothing_behind() {
    let calls = if tier() == 0 { 200 } else { 1000 };
    let daemon = Arc::new(Daemon::start());
    let log = format!("--prompt-log={}", daemon.path("log").join("prompts").display());
    daemon.agent("a", &["--cap=all", &log], json!({}));
    daemon.until("agents/a", |agent| agent["status"]["installed"] == true);
    let pid = daemon.pid();
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        callers.push(Arc::new(Caller::of(&daemon, &format!("caller-{caller}")).await));
    }
    let before = held(pid);
    let workers = (0..CALLERS * WORKERS_OF_A_CALLER).map(|id| Worker {
        id,
        daemon: Arc::clone(&daemon),
        caller: Arc::clone(&callers[id % CALLERS]),
        sessions_max: SESSIONS_OF_A_CALLER.div_ceil(WORKERS_OF_A_CALLER) - id / CALLERS,
        children: Vec::new(),
        calls: 0,
    });
    // The warm-up makes every session, and lets allocator and caches find their size.
    let warm_up = calls * 2 / 5;
    let workers = work(workers.collect(), warm_up).await;
    let sessions: usize = workers.iter().map(|worker| worker.children.len()).sum();
    assert_eq!(sessions, CALLERS * SESSIONS_OF_A_CALLER);
    let (warm_held, warm_kib) = (held(pid), memory_kib(pid));
    let since = Instant::now();
    let workers = work(workers, calls - warm_up).await;
    let took = since.elapsed();
    let kib = memory_kib(pid);
    println!(
        "{calls} calls, the last {} in {took:?}; {warm_kib} KiB, then {kib}; {before:?}, {warm_held:?}, {:?}",
        calls - warm_up,
        held(pid)
    );
    let allowed = warm_kib + warm_kib * GROWTH_PERCENT_MAX / 100 + GROWTH_KIB_MAX;
    assert!(kib <= allowed, "{warm_kib} KiB after the warm-up, {kib} at the end");
    given_once(&daemon, &workers, calls);
    full_capacity(&daemon, &callers, &workers).await;

    drop(workers);
    for caller in callers {
        Arc::into_inner(caller).unwrap().close().await;
    }
    for caller in 0..CALLERS {
        daemon.ok(&["delete", "session", &format!("caller-{caller}"), "--wait"]);
    }
    assert_eq!(daemon.processes(), Vec::<String>::new());
    // Idle threads of the runtime end after 10 s.
    wait_for("files and threads as before", || {
        let now = held(pid);
        (now.files <= before.files && now.threads <= before.threads && now.zombies == 0)
            .then_some(())
    });
}

/// The agent's own log has each prompt of each worker, and each once.
fn given_once(daemon: &Daemon, workers: &[Worker], calls: usize) {
    let mut given = BTreeMap::<String, usize>::new();
    for line in daemon.logged("prompts") {
        *given.entry(line["text"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(workers.iter().map(|worker| worker.calls).sum::<usize>(), calls);
    assert_eq!(given.len(), calls, "different prompts that were given");
    assert!(given.values().all(|&times| times == 1), "{given:#?}");
}

/// At full capacity, a caller's or the daemon's, one more call is answered at once; the slots come
/// back with a cancel.
async fn full_capacity(daemon: &Daemon, callers: &[Arc<Caller>], workers: &[Worker]) {
    let sessions_of = |caller: usize| {
        let own = workers.iter().filter(move |worker| worker.id % CALLERS == caller);
        own.flat_map(|worker| &worker.children)
    };
    let prompt =
        |child: &Child, text: &str| json!({"agentId": "a", "prompt": text, "sessionId": child.uid});
    let mut begun = Vec::new();
    for (number, caller) in callers.iter().enumerate().take(2) {
        for child in sessions_of(number).take(TURNS_OF_A_CALLER_MAX) {
            let told = caller.prompt(&prompt(child, "[[never]]")).await;
            assert_eq!(told["status"], "accepted", "{told:#}");
            begun.push((caller, child));
        }
        let fifth = sessions_of(number).nth(TURNS_OF_A_CALLER_MAX).unwrap();
        let told = caller.prompt(&prompt(fifth, "one too many")).await;
        assert_eq!(told["status"], "capacity_exceeded", "{told:#}");
    }
    let full = json!({
        "status": "capacity_exceeded", "code": "SPAWN_CAPACITY_EXCEEDED", "retryable": true,
    });
    let other = sessions_of(2).next().unwrap();
    assert_eq!(callers[2].prompt(&prompt(other, "one too many")).await, full);
    // A new session would need a slot too, and is not made.
    let new = json!({"agentId": "a", "prompt": "one too many"});
    assert_eq!(callers[2].prompt(&new).await, full);
    for (caller, child) in begun {
        let told = caller.told("cancel_session", &json!({"sessionId": child.uid})).await;
        assert_eq!(told["cancelled"], true);
        daemon.phase(&child.name, "Stopped");
    }
    let mut last = prompt(other, "[[say:free again]]");
    last["background"] = false.into();
    assert_eq!(callers[2].prompt(&last).await["content"], "free again");
    assert!(daemon.logged("prompts").iter().all(|line| line["text"] != "one too many"));
}
