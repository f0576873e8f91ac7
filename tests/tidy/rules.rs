//! The rules, each with its negative control.

use crate::checks::*;
use crate::source::Tree;

/// One rule.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&Tree) -> Vec<String>,
    /// Made-up sources that must be found fault with, each alone.
    pub(crate) breaks: &'static [(&'static str, &'static str)],
    /// Made-up sources that look like it and are in order.
    pub(crate) keeps: &'static [(&'static str, &'static str)],
}

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "a module names only its neighbours",
        check: walls,
        breaks: &[
            ("src/plan/x.rs", "use crate::store::Store;"),
            ("src/plan/x.rs", "use crate::{api, controller::act};"),
            ("src/plan/x.rs", "use crate::clock::SystemClock;"),
            ("src/plan/x.rs", "use crate::clock::{Now, Clock};"),
            ("src/rest/x.rs", "fn f() { super::super::runtime::launch::f() }"),
            ("src/rest/mod.rs", "use super::acp::event;"),
            ("src/manifests/x.rs", "use crate::controller::Handle;"),
            ("src/store/mod.rs", "mod keys { use super::super::plan::World; }"),
            ("src/admission/x.rs", "use crate::runtime::Options;"),
            ("src/cli/x.rs", "use crate::store::Store;"),
            ("src/cli/x.rs", "use crate::rest::serve;"),
            ("src/demo/x.rs", "use crate::api::Session;"),
            ("src/demo/x.rs", "use crate::cli::client;"),
            ("src/mcp/x.rs", "use crate::controller::Handle;"),
            ("src/mcp/x.rs", "use crate::rest::Failure;"),
            ("src/boundary/x.rs", "use crate::store::Blobs;"),
            ("src/api/x.rs", "use crate::clock::Now;"),
            ("src/options/x.rs", "use crate::acp::event;"),
            ("src/shim/x.rs", "use spawnlet::api;"),
            ("src/main.rs", "fn main() { spawnlet::store::open() }"),
            ("src/unheard_of/mod.rs", "use crate::api;"),
        ],
        keeps: &[
            ("src/plan/x.rs", "use crate::clock::{Mono, Now};\nuse super::world;"),
            ("src/cli/x.rs", "use crate::rest::{printable, resource::Resource};"),
            ("src/rest/x.rs", "//! as crate::runtime does\n#[cfg(test)]\nuse crate::runtime;\n"),
            ("src/server/x.rs", "use crate::{controller, rest};"),
            ("src/store/mod.rs", "mod keys { use super::Key; }"),
        ],
    },
    Rule {
        name: "api, options and plan are pure",
        check: purity,
        breaks: &[
            ("src/plan/x.rs", "pub async fn f() {}"),
            ("src/plan/x.rs", "fn f() { tracing::info!(1); }"),
            ("src/api/x.rs", "use tokio::sync::watch;"),
            ("src/api/x.rs", "fn f() { std::fs::read(p) }"),
            ("src/api/x.rs", "fn f() { uuid::Uuid::now_v7() }"),
            ("src/options/x.rs", "use std::time::Instant;"),
            ("src/plan/x.rs", "use rand::Rng;"),
        ],
        keeps: &[("src/plan/x.rs", "//! async\n#[cfg(test)]\nmod tests { use std::fs; }")],
    },
    Rule {
        name: "only store knows SQL",
        check: sql,
        breaks: &[
            ("src/controller/x.rs", "use rusqlite::Connection;"),
            ("src/rest/x.rs", "fn f() { run(\"SELECT value FROM records\") }"),
            ("src/admission/x.rs", "fn f() { run(\"delete from records\") }"),
        ],
        keeps: &[
            ("src/store/sqlite/x.rs", "use rusqlite::Connection;"),
            ("src/rest/x.rs", "//! SELECT a FROM b\nfn f() { say(\"select one\") }"),
        ],
    },
    Rule {
        name: "only runtime, the shim and the demonstration's one file start or signal processes",
        check: processes,
        breaks: &[
            ("src/controller/x.rs", "fn f() { Command::new(a); }"),
            ("src/server/x.rs", "use tokio::process::Command;"),
            ("src/cli/x.rs", "fn f() { rustix::process::kill_process(pid, TERM); }"),
            ("src/acp/x.rs", "fn f() { pidfd_send_signal(fd, s); }"),
            ("src/demo/story.rs", "fn f() { Command::new(a); }"),
        ],
        keeps: &[
            ("src/demo/process.rs", "fn f() { Command::new(a); }"),
            ("src/runtime/x.rs", "use std::process::Command;"),
            ("src/cli/x.rs", "use std::process::ExitCode;"),
        ],
    },
    Rule {
        name: "unsafe stands in runtime/sys.rs and in the shim alone",
        check: unsafety,
        breaks: &[
            ("src/runtime/launch.rs", "fn f() { unsafe { g() } }"),
            ("src/api/x.rs", "unsafe impl Send for X {}"),
            ("src/store/x.rs", "#![allow(unsafe_code)]"),
            ("tests/it/x.rs", "fn f() { unsafe { g() } }"),
        ],
        keeps: &[
            ("src/runtime/sys.rs", "fn f() { unsafe { g() } }"),
            ("src/api/x.rs", "//! unsafe"),
        ],
    },
    Rule {
        name: "only clock.rs reads a clock",
        check: clocks,
        breaks: &[
            ("src/rest/x.rs", "fn f() { std::time::SystemTime::now() }"),
            ("src/controller/x.rs", "fn f() { Instant::now() }"),
            ("src/store/x.rs", "fn f() { jiff::Timestamp::now() }"),
        ],
        keeps: &[("src/clock.rs", "fn f() { SystemTime::now() }")],
    },
    Rule {
        name: "over MCP a session is read only as somebody's",
        check: owned_reads,
        breaks: &[
            ("src/mcp/spawn/x.rs", "fn f() { shared.records.by_uid::<SessionSpec>(&uid) }"),
            ("src/mcp/spawn/x.rs", "fn f() { shared.records.list::<TurnSpec>(None, &all) }"),
            ("src/mcp/updates.rs", "fn f() { records.children_of(&uid) }"),
            (
                "src/mcp/spawn/x.rs",
                "pub async fn call(shared: &Shared) { let id = required(\"sessionId\"); read(id) }",
            ),
        ],
        keeps: &[
            (
                "src/mcp/spawn/x.rs",
                "async fn call() { let id = required(\"sessionId\"); \
                 shared.admission.child(&call.caller, &id) }",
            ),
            ("src/mcp/updates.rs", "fn f() { decode::<SessionSpec>(key, value, rev) }"),
            ("src/rest/x.rs", "fn f() { records.list::<SessionSpec>(None, &all) }"),
        ],
    },
    Rule {
        name: "in the controller only act, output and report write",
        check: acting,
        breaks: &[
            ("src/controller/observe.rs", "fn f() { txn.commit(store).await }"),
            ("src/controller/mod.rs", "fn f() { launcher.launch(request).await }"),
            ("src/controller/pump.rs", "fn f() { blobs.append(appends).await }"),
            ("src/controller/observe.rs", "fn f() { entry.acp.cancel() }"),
            ("src/controller/output.rs", "fn f() { entry.control.kill_tree() }"),
            ("src/controller/report.rs", "fn f() { journal.record(turn).await }"),
        ],
        keeps: &[
            ("src/controller/act.rs", "fn f() { txn.commit(store).await }"),
            ("src/controller/output.rs", "fn f() { blobs.append(appends).await }"),
        ],
    },
    Rule {
        name: "nothing decides by a session's phase",
        check: phases,
        breaks: &[
            ("src/controller/x.rs", "fn f() { if s == SessionPhase::Idle {} }"),
            ("src/plan/session.rs", "use crate::api::SessionPhase;"),
            ("src/admission/x.rs", "fn f() { v.pointer(\"/status/phase\") }"),
            ("src/api/session.rs", "impl SessionPhase { fn is_final(self) -> bool { true } }"),
        ],
        keeps: &[
            ("src/plan/status.rs", "fn f() -> SessionPhase { SessionPhase::Idle }"),
            ("src/rest/table.rs", "fn f() { v.pointer(\"/status/phase\") }"),
            ("src/plan/turn.rs", "fn f() { TurnPhase::Failed }"),
        ],
    },
    Rule {
        name: "admission, act and the module's own records are all that writes",
        check: commits,
        breaks: &[
            ("src/rest/write.rs", "fn f() { txn.commit(store).await }"),
            ("src/manifests/apply.rs", "fn f() { Txn::new() }"),
        ],
        keeps: &[("src/admission/update.rs", "fn f() { txn.commit(store).await }")],
    },
    Rule {
        name: "every queue is bounded by a named constant",
        check: queues,
        breaks: &[
            ("src/acp/x.rs", "fn f() { mpsc::unbounded_channel() }"),
            ("src/acp/x.rs", "fn f() { mpsc::channel(64) }"),
            ("src/acp/x.rs", "fn f() { std::sync::mpsc::channel() }"),
            ("src/acp/x.rs", "fn f() { broadcast::channel::<u8>(1_000) }"),
        ],
        keeps: &[
            ("src/acp/x.rs", "fn f() { mpsc::channel(QUEUE_MAX); oneshot::channel(); }"),
            ("src/acp/x.rs", "fn f() { watch::channel(0) }"),
        ],
    },
    Rule {
        name: "no task is let go of",
        check: detached,
        breaks: &[
            ("src/rest/x.rs", "fn f() { tokio::spawn(async {}); }"),
            ("src/rest/x.rs", "fn f() { tokio::task::spawn(async {}); }"),
        ],
        keeps: &[("src/rest/x.rs", "fn f() { tasks.spawn(async {}); }")],
    },
    Rule {
        name: "a file has fewer than 600 lines",
        check: lengths,
        breaks: &[("src/api/x.rs", LONG)],
        keeps: &[("src/api/x.rs", "fn f() {}\n")],
    },
    Rule {
        name: "a module says at its head what it is",
        check: heads,
        breaks: &[
            ("src/api/x.rs", "use crate::api;\nfn f() {}\n"),
            ("src/api/x.rs", "//!\nfn f() {}"),
        ],
        keeps: &[("src/api/x.rs", "//! What it is.\nfn f() {}\n")],
    },
    Rule {
        name: "nothing is left undone",
        check: undone,
        breaks: &[
            ("src/api/x.rs", "fn f() { todo!() }"),
            ("src/api/x.rs", "fn f() { unimplemented!(\"later\") }"),
            ("tests/it/x.rs", "#[test]\n#[ignore]\nfn f() {}"),
            ("tests/it/x.rs", "#[ignore = \"slow\"]\nfn f() {}"),
        ],
        keeps: &[("src/api/x.rs", "//! todo!()\nfn f() {}")],
    },
    Rule {
        name: "no test sleeps but in paused time",
        check: sleeps,
        breaks: &[
            ("tests/it/x.rs", "#[test]\nfn f() { std::thread::sleep(ONE) }"),
            (
                "src/acp/x.rs",
                "#[cfg(test)]\nmod t { #[tokio::test]\nasync fn f() { sleep(ONE).await } }",
            ),
            ("tests/it/x.rs", "async fn wait() { tokio::time::sleep(ONE).await }"),
            (
                "tests/it/x.rs",
                "async fn wait() { sleep(ONE).await }\n#[tokio::test]\nasync fn f() {}",
            ),
        ],
        keeps: &[
            (
                "tests/it/x.rs",
                "async fn wait() { sleep(ONE).await }\n#[tokio::test(start_paused = true)]\nasync fn f() {}",
            ),
            (
                "tests/it/x.rs",
                "#[tokio::test(start_paused = true)]\nasync fn f() { tokio::time::sleep(ONE).await }",
            ),
            ("src/acp/x.rs", "fn f() { tokio::time::sleep(ONE) }"),
        ],
    },
    Rule {
        name: "plan has clippy refuse a wildcard over an enum",
        check: wildcards,
        breaks: &[
            ("src/plan/mod.rs", "//! Plans.\nmod x;"),
            ("src/plan/x.rs", "//! X.\n#![allow(clippy::wildcard_enum_match_arm)]"),
        ],
        keeps: &[("src/plan/mod.rs", "//! Plans.\n#![deny(clippy::wildcard_enum_match_arm)]")],
    },
];

/// Six hundred lines.
const LONG: &str = {
    const LINE: [u8; LINES_MAX] = [b'\n'; LINES_MAX];
    match std::str::from_utf8(&LINE) {
        Ok(text) => text,
        Err(_) => "",
    }
};
