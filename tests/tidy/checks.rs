//! What the rules look for.

use crate::source::{Source, Tree, is_word, line_of};

/// Lines that a file may have.
pub(crate) const LINES_MAX: usize = 600;

/// What each top-level module may name of the crate. `server` puts the daemon together and may
/// name all; it alone names both the loop and the API.
const WALLS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("clock", &["api"]),
    // It does nothing but in tests of crashes, so that whoever changes the world may name it.
    ("failpoint", &[]),
    // A driver for tests, compiled with them alone.
    ("fuzz", &[]),
    ("ports", &["api"]),
    ("secret", &["api", "ports"]),
    ("options", &["api"]),
    ("plan", &["api", "options", "clock::Now", "clock::Mono"]),
    ("store", &["failpoint", "api", "clock"]),
    ("runtime", &["api", "clock", "secret"]),
    ("acp", &["api", "options", "clock"]),
    ("slots", &["api", "plan::capacity", "store"]),
    ("ledger", &["api", "store"]),
    (
        "admission",
        &[
            "failpoint",
            "api",
            "plan::capacity",
            "plan::spending",
            "ports",
            "ledger",
            "slots",
            "store",
            "clock",
        ],
    ),
    ("guard", &["api", "admission", "clock"]),
    ("rest", &["api", "store", "admission", "guard", "ports", "clock"]),
    ("boundary", &["api"]),
    ("mcp", &["api", "store", "admission", "guard", "ports", "boundary", "clock"]),
    ("manifests", &["failpoint", "api", "store", "admission", "ports", "clock"]),
    (
        "cli",
        &[
            "api",
            "manifests::directory",
            "manifests::document",
            "manifests::yaml",
            "rest::resource",
            "rest::printable",
        ],
    ),
    (
        "controller",
        &[
            "failpoint",
            "api",
            "options",
            "plan",
            "ledger",
            "slots",
            "store",
            "runtime",
            "acp",
            "clock",
            "ports",
            "secret::Redactor",
            "secret::redact",
        ],
    ),
    ("demo", &["cli::DemoOptions"]),
    ("shim", &[]),
    ("lib", &[]),
    ("main", &["cli", "demo", "server"]),
];

pub(crate) fn walls(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for source in library(tree).filter(|source| source.module() != "server") {
        let module = source.module();
        let Some((_, allowed)) = WALLS.iter().find(|(name, _)| *name == module) else {
            found.push(format!("{}: the module {module} has no line in the rule", source.path));
            continue;
        };
        for (line, name) in names(source) {
            let own = name == module || name.starts_with(&format!("{module}::"));
            let is_allowed = allowed
                .iter()
                .any(|allowed| name == *allowed || name.starts_with(&format!("{allowed}::")));
            if !own && !is_allowed {
                found.push(format!("{}:{line}: {module} names {name}", source.path));
            }
        }
    }
    found
}

/// Every path of the crate that a file names, groups of a `use` taken apart. A chain of `super::`
/// that leads to the crate's root counts too.
fn names(source: &Source) -> Vec<(usize, String)> {
    let root = if matches!(source.module(), "main" | "shim") { "spawnlet::" } else { "crate::" };
    let mut found = Vec::new();
    let mut take = |at: usize, rest: &str| {
        let before = source.code[..at].bytes().last();
        if before.is_some_and(|byte| is_word(byte) || byte == b':' || byte == b'$') {
            return;
        }
        let line = line_of(&source.text, at);
        found.extend(expand(rest).into_iter().map(|name| (line, name)));
    };
    for (at, _) in source.code.match_indices(root) {
        take(at, &source.code[at + root.len()..]);
    }
    for (at, _) in source.code.match_indices("super::") {
        let mut rest = &source.code[at..];
        let mut up = 0;
        while let Some(shorter) = rest.strip_prefix("super::") {
            (rest, up) = (shorter, up + 1);
        }
        if up >= source.depth() + inline_modules(&source.code, at) {
            take(at, rest);
        }
    }
    found
}

/// How many modules with a body in the file stand around a place.
fn inline_modules(code: &str, place: usize) -> usize {
    let opens = |at: usize| {
        let item = code[at..].split(['{', ';']).next().unwrap_or("");
        let is_module = item.split_whitespace().count() == 2 && item.starts_with("mod ");
        is_module.then_some(at + item.len()).filter(|brace| code[*brace..].starts_with('{'))
    };
    let holds = |brace: usize| {
        let body = &code[brace..place];
        body.matches('{').count() > body.matches('}').count()
    };
    code[..place]
        .match_indices("mod ")
        .filter_map(|(at, _)| opens(at))
        .filter(|b| *b < place && holds(*b))
        .count()
}

/// The paths that begin here: one, or those of a group.
fn expand(rest: &str) -> Vec<String> {
    let rest = rest.trim_start();
    if let Some(inner) = rest.strip_prefix('{') {
        let mut found = Vec::new();
        let (mut depth, mut start) = (0_usize, 0);
        for (at, character) in inner.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth == 0 => {
                    found.extend(expand_item(&inner[start..at]));
                    break;
                }
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    found.extend(expand_item(&inner[start..at]));
                    start = at + 1;
                }
                _ => {}
            }
        }
        return found;
    }
    let end = rest
        .char_indices()
        .find(|(_, character)| {
            !(character.is_ascii_alphanumeric() || matches!(character, '_' | ':' | '*'))
        })
        .map_or(rest.len(), |(at, _)| at);
    let path = &rest[..end];
    match path.strip_suffix("::") {
        Some(prefix) => {
            expand(&rest[end..]).into_iter().map(|name| format!("{prefix}::{name}")).collect()
        }
        None if path.is_empty() => Vec::new(),
        None => vec![path.to_owned()],
    }
}

fn expand_item(item: &str) -> Vec<String> {
    if item.trim().is_empty() { Vec::new() } else { expand(item) }
}

pub(crate) fn purity(tree: &Tree) -> Vec<String> {
    const FORBIDDEN: &[&str] = &[
        "async",
        "await",
        "tokio",
        "std::fs",
        "std::io",
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "ToSocketAddrs",
        "std::env",
        "std::process",
        "std::thread",
        "std::os",
        "std::sync",
        "rand",
        "tracing",
        "SystemTime",
        "Instant",
        "now_v7",
        "new_v4",
        "println",
        "eprintln",
        "rustix",
    ];
    let pure = |source: &&Source| matches!(source.module(), "api" | "options" | "plan");
    words(library(tree).filter(pure), FORBIDDEN)
}

pub(crate) fn sql(tree: &Tree) -> Vec<String> {
    const STATEMENTS: &[(&str, &str)] = &[
        ("select ", " from "),
        ("insert ", " into "),
        ("delete from ", ""),
        ("update ", " set "),
        ("create table ", ""),
        ("pragma ", ""),
    ];
    let outside = || library(tree).filter(|source| source.module() != "store");
    let mut found = words(outside(), &["rusqlite"]);
    for source in outside() {
        for (line, string) in &source.strings {
            let string = string.to_lowercase();
            let begins = |first: &str| {
                string.trim_start_matches(['r', '#', '"', ' ', '\n']).starts_with(first)
            };
            if STATEMENTS.iter().any(|(first, then)| begins(first) && string.contains(then)) {
                found.push(format!("{}:{line}: SQL", source.path));
            }
        }
    }
    found
}

pub(crate) fn processes(tree: &Tree) -> Vec<String> {
    const FORBIDDEN: &[&str] = &[
        "Command::new",
        "process::Command",
        "kill_process",
        "kill_process_group",
        "kill_current_process_group",
        "pidfd_send_signal",
        "pidfd_open",
        "libc",
    ];
    // The demonstration runs the built program as a user would.
    let elsewhere = |source: &&Source| {
        !matches!(source.module(), "runtime" | "shim") && source.path != "src/demo/process.rs"
    };
    words(library(tree).filter(elsewhere), FORBIDDEN)
}

pub(crate) fn unsafety(tree: &Tree) -> Vec<String> {
    let elsewhere = |source: &&Source| {
        source.path != "src/runtime/sys.rs" && !source.path.starts_with("src/shim/")
    };
    let mut found = words(tree.sources.iter().filter(elsewhere), &["unsafe", "unsafe_code"]);
    for source in tree.sources.iter().filter(elsewhere) {
        found.extend(hits(source, &source.test_code, &["unsafe", "unsafe_code"]));
    }
    found
}

pub(crate) fn clocks(tree: &Tree) -> Vec<String> {
    const FORBIDDEN: &[&str] =
        &["SystemTime::now", "Instant::now", "Timestamp::now", "Zoned::now", "clock_gettime"];
    // The shim links nothing of the library; it measures its own 250 ms.
    let elsewhere = |source: &&Source| source.path != "src/clock.rs" && source.module() != "shim";
    words(library(tree).filter(elsewhere), FORBIDDEN)
}

/// Who of the controller may do what. `act` may do all. `output` makes durable what an agent
/// wrote, and `report` writes what the loop tells: neither touches desired state or status.
/// Whoever asks over MCP reads a session only through the admission, which wants to know whose it is;
/// the one file besides only tells the streams what changed.
pub(crate) fn owned_reads(tree: &Tree) -> Vec<String> {
    const READS: &[&str] = &["SessionSpec", ".list::<", ".list(", "children_of("];
    let is_facade = |source: &&Source| source.module() == "mcp" && !source.path.contains("/tests");
    let mut found = Vec::new();
    for source in library(tree).filter(is_facade) {
        let is_stream = source.path == "src/mcp/updates.rs";
        found.extend(hits(source, &source.code, if is_stream { &READS[1..] } else { READS }));
    }
    for source in library(tree).filter(|source| source.path.starts_with("src/mcp/spawn/")) {
        let names = |text: &str| source.code.contains(text);
        let is_id = |text: &str| text.trim_matches('"') == "sessionId";
        let has_id = source.strings.iter().any(|(_, text)| is_id(text));
        let takes_an_id = has_id && names("async fn call(");
        let says_whose = names("&call.caller");
        if takes_an_id && !says_whose {
            found.push(format!("{}: takes a sessionId and does not say who asks", source.path));
        }
    }
    found
}

pub(crate) fn acting(tree: &Tree) -> Vec<String> {
    const WRITES: &[(&str, &[&str])] = &[
        (".commit(", &["report"]),
        (".append(", &["output"]),
        (".launch(", &[]),
        (".open_gate(", &[]),
        (".terminate(", &[]),
        (".kill_tree(", &[]),
        ("journal.record(", &[]),
        ("journal.settle(", &[]),
        ("connect(", &[]),
        ("acp.initialize(", &[]),
        ("acp.open(", &[]),
        ("acp.set(", &[]),
        ("acp.prompt(", &[]),
        ("acp.cancel(", &[]),
        ("acp.close_stdin(", &[]),
        ("acp.close_session(", &[]),
    ];
    let mut found = Vec::new();
    for source in library(tree).filter(|source| source.module() == "controller") {
        let file = source.path.trim_start_matches("src/controller/").trim_end_matches(".rs");
        let file = file.split('/').next().unwrap_or(file);
        for (call, others) in WRITES {
            if file != "act" && !others.contains(&file) {
                found.extend(hits(source, &source.code, &[call]));
            }
        }
    }
    found
}

/// A session's phase is derived in `plan/status.rs` and shown by tables, selectors and clients.
/// The type has no methods, so whoever decides by it has to name it, or the field's path.
pub(crate) fn phases(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for source in library(tree) {
        if !source.path.starts_with("src/api/") && source.path != "src/plan/status.rs" {
            found.extend(hits(source, &source.code, &["SessionPhase"]));
        }
        if source.path.starts_with("src/api/") {
            found.extend(hits(source, &source.code, &["impl SessionPhase"]));
        }
        if !matches!(source.module(), "rest" | "cli" | "api") {
            for (line, string) in &source.strings {
                if string.contains("status/phase") || string.contains("status.phase") {
                    found.push(format!("{}:{line}: {string}", source.path));
                }
            }
        }
    }
    found
}

/// Desired state goes in by `admission`, status by the loop; beside them the manifests keep their
/// marks, events and the server its own records.
pub(crate) fn commits(tree: &Tree) -> Vec<String> {
    const WRITERS: &[&str] = &["src/manifests/ledger.rs", "src/manifests/tell.rs"];
    let others = |source: &&Source| {
        !matches!(source.module(), "admission" | "controller" | "store" | "api")
            && !WRITERS.contains(&source.path.as_str())
    };
    words(library(tree).filter(others), &[".commit(", "Txn::new"])
}

pub(crate) fn queues(tree: &Tree) -> Vec<String> {
    let mut found =
        words(library(tree), &["unbounded_channel", "unbounded", "std::sync::mpsc::channel"]);
    for source in library(tree) {
        for (at, call) in source.code.match_indices("channel") {
            let rest = &source.code[at + call.len()..];
            let before = &source.code[..at];
            let queue =
                ["mpsc::", "broadcast::", "sync_"].iter().any(|kind| before.ends_with(kind));
            let rest = if rest.starts_with("::<") {
                rest.find(">(").map_or("", |end| &rest[end + 1..])
            } else {
                rest
            };
            let Some(capacity) = rest.strip_prefix('(') else { continue };
            if queue && capacity.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == ')')
            {
                let line = line_of(&source.text, at);
                found.push(format!("{}:{line}: a queue without a named bound", source.path));
            }
        }
    }
    found
}

pub(crate) fn detached(tree: &Tree) -> Vec<String> {
    words(library(tree), &["tokio::spawn", "task::spawn", "spawn_local"])
}

pub(crate) fn lengths(tree: &Tree) -> Vec<String> {
    let long = |source: &&Source| source.text.lines().count() >= LINES_MAX;
    let tell = |source: &Source| format!("{}: {} lines", source.path, source.text.lines().count());
    tree.sources.iter().filter(long).map(tell).collect()
}

pub(crate) fn heads(tree: &Tree) -> Vec<String> {
    let bare =
        |source: &&Source| {
            source.text.lines().next().is_none_or(|line| {
                line.strip_prefix("//!").is_none_or(|head| head.trim().is_empty())
            })
        };
    let missing = |source: &Source| format!("{}:1: no module documentation", source.path);
    library(tree).filter(bare).map(missing).collect()
}

pub(crate) fn undone(tree: &Tree) -> Vec<String> {
    const FORBIDDEN: &[&str] = &["todo!", "unimplemented!", "#[ignore"];
    tree.sources
        .iter()
        .flat_map(|source| {
            let mut found = hits(source, &source.code, FORBIDDEN);
            found.extend(hits(source, &source.test_code, FORBIDDEN));
            found
        })
        .collect()
}

/// A test that sleeps pauses time; so does every asynchronous test beside a helper that sleeps.
/// Nothing that a test runs blocks its thread for a while.
pub(crate) fn sleeps(tree: &Tree) -> Vec<String> {
    const PAUSED: &str = "start_paused = true";
    let directory = |path: &str| path.rsplit_once('/').map_or("", |(front, _)| front).to_owned();
    let all_paused = |beside: &str| {
        let files = tree.sources.iter().filter(|source| directory(&source.path) == beside);
        let codes: Vec<&str> = files.map(|source| source.test_code.as_str()).collect();
        let attributes = codes.iter().flat_map(|code| code.split("#[tokio::test").skip(1));
        let mut paused =
            attributes.map(|rest| rest.split(']').next().unwrap_or("").contains(PAUSED));
        codes.iter().any(|code| code.contains(PAUSED)) && paused.all(|is_paused| is_paused)
    };
    let mut found = Vec::new();
    for source in &tree.sources {
        for (at, _) in source.test_code.match_indices("sleep(") {
            let before = &source.test_code[..at];
            let function = before.rfind("fn ").unwrap_or(0);
            let head = before[..function].rfind(['}', ';', '{']).map_or(0, |end| end + 1);
            let attributes = &before[head..function];
            let paused = if attributes.contains("::test") {
                attributes.contains(PAUSED)
            } else {
                all_paused(&directory(&source.path))
            };
            if !paused || before.ends_with("thread::") {
                found.push(format!("{}:{}: a sleep", source.path, line_of(&source.text, at)));
            }
        }
    }
    found
}

/// Clippy sees types, this only sees that it is told to look, and not told to look away.
pub(crate) fn wildcards(tree: &Tree) -> Vec<String> {
    const LINT: &str = "clippy::wildcard_enum_match_arm";
    let mut found = Vec::new();
    for source in library(tree).filter(|source| source.module() == "plan") {
        let denies = source.code.contains(&format!("#![deny({LINT})]"));
        if source.path == "src/plan/mod.rs" && !denies {
            found.push(format!("{}: {LINT} is not denied", source.path));
        }
        if source.code.matches(LINT).count() > usize::from(denies) {
            found.push(format!("{}: {LINT} is switched off", source.path));
        }
    }
    found
}

/// The files of `src/` that are not all tests.
fn library(tree: &Tree) -> impl Iterator<Item = &Source> {
    tree.sources.iter().filter(|source| source.path.starts_with("src/") && !source.is_test())
}

fn words<'a>(sources: impl Iterator<Item = &'a Source>, needles: &[&str]) -> Vec<String> {
    sources.flat_map(|source| hits(source, &source.code, needles)).collect()
}

/// Where the needles stand as whole words.
fn hits(source: &Source, code: &str, needles: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for needle in needles {
        for (at, _) in code.match_indices(needle) {
            let bytes = code.as_bytes();
            let first = needle.as_bytes()[0];
            let last = needle.as_bytes()[needle.len() - 1];
            let joined = |a: Option<&u8>, b: u8| a.is_some_and(|a| is_word(*a)) && is_word(b);
            let before = at.checked_sub(1).and_then(|at| bytes.get(at));
            if joined(before, first) || joined(bytes.get(at + needle.len()), last) {
                continue;
            }
            let text = source.text.lines().nth(line_of(code, at) - 1).unwrap_or("").trim();
            found.push(format!("{}:{}: {needle} in `{text}`", source.path, line_of(code, at)));
        }
    }
    found
}
