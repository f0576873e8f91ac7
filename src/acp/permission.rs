//! What an agent may do when it asks: the policy as one table, and what is known of tool calls.
//!
//! Invariants: only `allow_once` and `reject_once` are ever picked, by their kind and never by
//! their place; an agent that offers none of the right kind gets `cancelled`. A request is judged
//! on all that is known of its tool call, what earlier updates of its id said included. The policy
//! is no sandbox: an agent that does not ask is not bound by it.

use std::collections::{HashMap, VecDeque};

use serde::Deserialize;
use serde_json::Value;

use super::codec::ID_BYTES_MAX;
use super::event::{NAME_BYTES_MAX, ToolUpdate, cut};
use super::roots::Roots;
use crate::api::agent::Permissions;

/// What the policy says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Allowed, once.
    Allow,
    /// Rejected: the policy has it so.
    Reject,
    /// Rejected: the target is outside the session's directories.
    RejectOutside,
    /// It waits for an answer.
    Wait,
    /// Rejected: it would wait, and no turn runs that it could belong to.
    RejectOutOfTurn,
    /// Allowed, or rejected, by whoever was asked.
    Answered,
    /// Cancelled: its turn is being cancelled or is over, or the agent asks no more.
    Cancelled,
}

/// What becomes of a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `allow_once`, or `cancelled` if the agent offers none.
    Allow,
    /// `reject_once`, or `cancelled` if the agent offers none.
    Reject,
    /// `cancelled`.
    Cancel,
}

/// The policy.
#[must_use]
pub fn judge(policy: Permissions, kind: Option<&str>, inside: bool) -> Verdict {
    let reads = matches!(kind, Some("read" | "search"));
    match policy {
        _ if !inside => Verdict::RejectOutside,
        Permissions::DenyAll => Verdict::Reject,
        Permissions::ApproveAll => Verdict::Allow,
        Permissions::ApproveReads | Permissions::Ask if reads => Verdict::Allow,
        Permissions::ApproveReads | Permissions::Ask => Verdict::Wait,
    }
}

/// What a file or terminal service would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Read a file.
    Read,
    /// Write a file.
    Write,
    /// Start a program.
    Run,
    /// Use a terminal that was started.
    Use,
}

/// The policy, for files and terminals. Whether a path is inside is judged where it is opened.
#[must_use]
pub const fn judge_service(policy: Permissions, need: Need) -> Verdict {
    match (policy, need) {
        (Permissions::DenyAll, _) => Verdict::Reject,
        (Permissions::ApproveReads, Need::Write | Need::Run | Need::Use) => Verdict::Reject,
        (Permissions::Ask, Need::Write | Need::Run) => Verdict::Wait,
        (Permissions::ApproveReads | Permissions::Ask | Permissions::ApproveAll, _) => {
            Verdict::Allow
        }
    }
}

/// The option to pick: the first of the right kind, if any.
#[must_use]
pub fn pick(options: &[Choice], allow: bool) -> Option<&str> {
    let kind = if allow { "allow_once" } else { "reject_once" };
    options.iter().find(|option| option.kind == kind).map(|option| option.id.as_str())
}

/// An answer that an agent offers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Choice {
    /// Its id.
    #[serde(rename = "optionId")]
    pub id: String,
    /// Its kind; unknown ones are never picked.
    #[serde(default)]
    pub kind: String,
    /// For people, cut.
    #[serde(skip)]
    pub name: String,
}

/// The options of a request, without those that cannot be understood; `None` if there is no list.
/// An id that two kinds share says neither: an agent that is told "no" by it could hear "yes".
#[must_use]
pub fn choices(options: &Value) -> Option<Vec<Choice>> {
    let list = options.as_array()?;
    let named = |option: &Value| {
        let mut choice = Choice::deserialize(option).ok()?;
        choice.name = short(option.get("name").and_then(Value::as_str).unwrap_or_default());
        Some(choice)
    };
    let known = list.iter().take(CHOICES_MAX).filter_map(named);
    let known: Vec<Choice> = known.filter(|choice| choice.id.len() <= ID_BYTES_MAX).collect();
    let is_plain = |choice: &&Choice| {
        known.iter().all(|other| other.id != choice.id || other.kind == choice.kind)
    };
    Some(known.iter().filter(is_plain).cloned().collect())
}

/// How many answers of a request are looked at; agents offer two to four.
const CHOICES_MAX: usize = 64;
/// How many tool calls of a session are remembered; the oldest go first.
const CALLS_MAX: usize = 1024;
/// How many targets of a tool call are remembered. One with more is taken as outside: a target
/// that was not kept could be.
const TARGETS_MAX: usize = 256;
/// The same by size: a path of Linux has at most 4096 bytes.
const TARGET_BYTES_MAX: usize = 4096;
/// How many bytes of targets are remembered in all.
const ALL_TARGETS_BYTES_MAX: usize = 1024 * 1024;

/// What is known of a tool call.
#[derive(Clone, Debug, Default)]
struct Call {
    kind: Option<String>,
    title: Option<String>,
    status: Option<String>,
    targets: Vec<String>,
    targets_lost: bool,
}

/// What is known of a session's tool calls.
#[derive(Debug, Default)]
pub struct ToolCalls {
    calls: HashMap<String, Call>,
    order: VecDeque<String>,
    target_bytes: usize,
}

impl ToolCalls {
    /// Takes in what a `tool_call`, a `tool_call_update` or a request says. What is absent there
    /// stays; targets add up, as an agent may name them one by one and means them all.
    pub fn learn(&mut self, id: &str, said: &Value) {
        // A request with such an id is refused.
        if id.len() > ID_BYTES_MAX {
            return;
        }
        if !self.calls.contains_key(id) {
            self.order.push_back(id.to_owned());
        }
        let call = self.calls.entry(id.to_owned()).or_default();
        let text = |name: &str| said.get(name).and_then(Value::as_str).map(short);
        call.kind = text("kind").or(call.kind.take());
        call.title = text("title").or(call.title.take());
        call.status = text("status").or(call.status.take());
        for target in targets(said) {
            match target {
                Some(path) if call.targets.iter().any(|known| known == path) => {}
                Some(path)
                    if path.len() <= TARGET_BYTES_MAX && call.targets.len() < TARGETS_MAX =>
                {
                    self.target_bytes += path.len();
                    call.targets.push(path.to_owned());
                }
                Some(_) | None => call.targets_lost = true,
            }
        }
        self.forget_oldest(id);
    }

    /// Keeps the bounds; the call that was just learnt of stays.
    fn forget_oldest(&mut self, keep: &str) {
        while self.order.len() > 1
            && (self.order.len() > CALLS_MAX || self.target_bytes > ALL_TARGETS_BYTES_MAX)
        {
            let Some(oldest) = self.order.pop_front() else { break };
            if oldest == keep {
                self.order.push_back(oldest);
            } else if let Some(gone) = self.calls.remove(&oldest) {
                self.target_bytes -= gone.targets.iter().map(String::len).sum::<usize>();
            }
        }
    }

    /// What is known of a call, as far as it is shown.
    #[must_use]
    pub fn summary(&self, id: &str) -> ToolUpdate {
        let call = self.calls.get(id).cloned().unwrap_or_default();
        ToolUpdate { id: short(id), title: call.title, status: call.status, kind: call.kind }
    }

    /// The paths that a call is known to be about, as the agent wrote them.
    #[must_use]
    pub fn targets(&self, id: &str) -> Vec<String> {
        self.calls.get(id).map(|call| call.targets.clone()).unwrap_or_default()
    }

    /// Whether all targets of a call are inside; a call without targets is.
    #[must_use]
    pub fn is_inside(&self, id: &str, roots: &Roots) -> bool {
        self.calls.get(id).is_none_or(|call| {
            !call.targets_lost && call.targets.iter().all(|path| roots.contain(path))
        })
    }
}

fn short(text: &str) -> String {
    cut(text, 8 * NAME_BYTES_MAX).to_owned()
}

/// The paths of locations and diffs; `None` for one that is no text.
fn targets(said: &Value) -> impl Iterator<Item = Option<&str>> {
    let list = |name: &str| said.get(name).and_then(Value::as_array).into_iter().flatten();
    let is_diff = |item: &&Value| item.get("type").and_then(Value::as_str) == Some("diff");
    list("locations")
        .chain(list("content").filter(is_diff))
        .map(|item| item.get("path").and_then(Value::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_policy_table_holds_in_every_cell() {
        use Permissions::{ApproveAll, ApproveReads, Ask, DenyAll};
        use Verdict::{Allow, Reject, RejectOutside, Wait};
        for policy in [DenyAll, ApproveReads, ApproveAll, Ask] {
            for kind in [Some("read"), Some("search"), Some("edit"), Some("weird"), None] {
                assert_eq!(judge(policy, kind, false), RejectOutside);
                let reads = matches!(kind, Some("read" | "search"));
                let expected = match (policy, reads) {
                    (DenyAll, _) => Reject,
                    (ApproveAll, _) | (ApproveReads | Ask, true) => Allow,
                    (ApproveReads | Ask, false) => Wait,
                };
                assert_eq!(judge(policy, kind, true), expected, "{policy:?} {kind:?}");
            }
        }
    }

    #[test]
    fn options_are_picked_by_kind_and_never_an_always() {
        let offered = choices(&json!([
            {"optionId": "a", "kind": "allow_always", "name": "x"},
            {"optionId": "broken", "kind": 7},
            {"optionId": "b", "kind": "reject_always"},
            {"optionId": "c", "kind": "reject_once"},
            {"optionId": "d", "kind": "allow_once"},
            {"optionId": "e", "kind": "allow_once"},
        ]))
        .unwrap();
        assert_eq!(pick(&offered, true), Some("d"));
        assert_eq!(pick(&offered, false), Some("c"));
        assert_eq!(pick(&offered[..2], true), None);
        assert_eq!(pick(&offered[..2], false), None);
        assert_eq!(choices(&json!({})), None);
    }

    #[test]
    fn an_id_that_means_yes_and_no_is_never_picked() {
        let offered = choices(&json!([
            {"optionId": "x", "kind": "allow_once"},
            {"optionId": "x", "kind": "reject_once"},
            {"optionId": "y", "kind": "reject_once"},
            {"optionId": "y", "kind": "reject_once"},
        ]))
        .unwrap();
        assert_eq!(pick(&offered, true), None);
        assert_eq!(pick(&offered, false), Some("y"));
    }

    #[test]
    fn a_call_is_judged_on_all_that_was_said_of_it() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().canonicalize().unwrap();
        let roots = Roots::new(vec![root.clone()]);
        let inside = format!("{}/x", root.display());
        let mut calls = ToolCalls::default();
        assert!(calls.is_inside("unknown", &roots));
        calls.learn("1", &json!({"kind": "edit", "locations": [{"path": inside}]}));
        calls.learn("1", &json!({"title": "later"}));
        assert!(calls.is_inside("1", &roots));
        assert_eq!(calls.summary("1").kind.as_deref(), Some("edit"));
        assert_eq!(calls.summary("1").title.as_deref(), Some("later"));
        calls.learn(
            "1",
            &json!({"content": [{"type": "content"}, {"type": "diff", "path": "/etc/x"}]}),
        );
        assert!(!calls.is_inside("1", &roots));
        calls.learn("1", &json!({"locations": [{"path": inside}], "content": []}));
        assert!(!calls.is_inside("1", &roots), "a target named once stays");
        calls.learn("2", &json!({"locations": [{"path": 7}]}));
        assert!(!calls.is_inside("2", &roots));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut calls = ToolCalls::default();
        let many: Vec<_> = (0..300).map(|n| json!({"path": format!("/{n}")})).collect();
        calls.learn("many", &json!({"locations": many}));
        assert!(calls.calls["many"].targets_lost);
        for n in 0..5000 {
            calls.learn(&n.to_string(), &json!({"locations": [{"path": "/x".repeat(2000)}]}));
        }
        assert!(calls.calls.len() <= CALLS_MAX);
        assert!(calls.target_bytes <= ALL_TARGETS_BYTES_MAX + TARGETS_MAX * TARGET_BYTES_MAX);
        assert_eq!(calls.calls.len(), calls.order.len());
    }
}
