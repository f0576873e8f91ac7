//! The judge of a history: what was acknowledged must be there, what ended must stay as it ended,
//! and no prompt may have been given twice.
//!
//! It sees the calls in the order of their answers, and, between the loads, everything that the
//! daemon lists and everything that the agents logged. An answer that never came is `Unknown`:
//! such a call may have been done or not, both are right, but not first one and then the other.
//!
//! It is pure: the tests at the end feed it made-up histories, each with one fault in it.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Session,
    Turn,
}

/// What a call asked for. Names are used once in a history; they name the object for good.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    /// With a first prompt or without; the first turn is called after its session.
    CreateSession {
        name: String,
        has_prompt: bool,
    },
    CreateTurn {
        name: String,
        session: String,
    },
    /// Session or turn: the desired state becomes `cancelled`.
    Cancel {
        kind: Kind,
        name: String,
    },
    Delete {
        kind: Kind,
        name: String,
    },
    /// The label of one caller; its values only grow.
    Label {
        session: String,
        caller: usize,
        value: u64,
    },
}

/// How a call came out.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// Acknowledged, with the object's uid.
    Ok(String),
    /// Refused: nothing was done.
    Fail,
    /// No answer.
    Unknown,
}

/// How a turn ended; must never change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct End {
    pub(super) phase: String,
    pub(super) delivery: String,
    /// Everything else of the end that is told: code, stop reason, time.
    pub(super) rest: String,
}

/// A listed object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) uid: String,
    /// A turn's.
    pub(super) session: Option<String>,
    /// Whether only a cancel ends the turn.
    pub(super) is_endless: bool,
    pub(super) is_being_deleted: bool,
    pub(super) is_cancelled: bool,
    pub(super) labels: BTreeMap<usize, u64>,
    pub(super) end: Option<End>,
}

/// How far a wish is known to have come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    #[default]
    None,
    Maybe,
    Acknowledged,
}

#[derive(Debug, Default)]
struct Known {
    uid: Option<String>,
    session: Option<String>,
    create: Wish,
    cancel: Wish,
    delete: Wish,
    labels: BTreeMap<usize, u64>,
    end: Option<End>,
    is_gone: bool,
}

impl Known {
    fn session_name(&self) -> &str {
        self.session.as_deref().unwrap_or_default()
    }
}

/// What is known of a history so far.
#[derive(Debug, Default)]
pub(super) struct Judge {
    known: BTreeMap<(Kind, String), Known>,
    /// How often the agents logged the prompt of each turn.
    prompts: BTreeMap<String, usize>,
    /// What is wrong with the history.
    pub(super) faults: Vec<String>,
}

/// The name of the turn that a session's own prompt becomes.
pub(super) fn first_turn(session: &str) -> String {
    format!("{session}-1")
}

impl Judge {
    fn known(&mut self, kind: Kind, name: &str) -> &mut Known {
        self.known.entry((kind, name.to_owned())).or_default()
    }

    /// A call was answered, or will never be.
    pub(super) fn take_call(&mut self, op: &Op, outcome: &Outcome) {
        let wish = match outcome {
            Outcome::Ok(_) => Wish::Acknowledged,
            Outcome::Fail => return,
            Outcome::Unknown => Wish::Maybe,
        };
        let uid = if let Outcome::Ok(uid) = outcome { Some(uid.clone()) } else { None };
        match op {
            Op::CreateSession { name, has_prompt } => {
                let session = self.known(Kind::Session, name);
                session.create = session.create.max(wish);
                session.uid = uid;
                if *has_prompt {
                    let turn = self.known(Kind::Turn, &first_turn(name));
                    turn.create = turn.create.max(wish);
                    turn.session = Some(name.clone());
                }
            }
            Op::CreateTurn { name, session } => {
                let turn = self.known(Kind::Turn, name);
                turn.create = turn.create.max(wish);
                turn.session = Some(session.clone());
                turn.uid = uid;
            }
            Op::Cancel { kind, name } => {
                let known = self.known(*kind, name);
                known.cancel = known.cancel.max(wish);
            }
            Op::Delete { kind, name } => {
                let known = self.known(*kind, name);
                known.delete = known.delete.max(wish);
            }
            Op::Label { session, caller, value } => {
                if wish == Wish::Acknowledged {
                    let label = self.known(Kind::Session, session).labels.entry(*caller);
                    let label = label.or_default();
                    *label = (*label).max(*value);
                }
            }
        }
    }

    /// One object, seen at any time: the part that holds under load too.
    pub(super) fn take_item(&mut self, item: &Item) {
        let mut faults = Vec::new();
        let known = self.known(item.kind, &item.name);
        let what = format!("{:?} {}", item.kind, item.name);
        if known.create == Wish::None {
            faults.push(format!("{what}: exists, but nobody made it"));
        }
        match &known.uid {
            Some(uid) if *uid != item.uid => {
                faults.push(format!("{what}: was {uid}, is {}", item.uid));
            }
            _ => known.uid = Some(item.uid.clone()),
        }
        match (&known.end, &item.end) {
            (Some(before), Some(now)) if before != now => {
                faults.push(format!("{what}: ended twice: {before:?}, then {now:?}"));
            }
            (None, Some(_)) => known.end.clone_from(&item.end),
            _ => {}
        }
        self.faults.extend(faults);
    }

    /// Everything that is listed while nobody calls.
    pub(super) fn take_list(&mut self, items: &[Item]) {
        for item in items {
            self.take_item(item);
            self.check_present(item);
        }
        let listed: BTreeSet<(Kind, &str)> =
            items.iter().map(|item| (item.kind, item.name.as_str())).collect();
        let is_asked_for = |known: &Known, all: &BTreeMap<(Kind, String), Known>| {
            let session = all.get(&(Kind::Session, known.session_name().to_owned()));
            known.delete != Wish::None
                || session.is_some_and(|session| session.delete != Wish::None)
        };
        let mut gone = Vec::new();
        for (key, known) in &self.known {
            if listed.contains(&(key.0, key.1.as_str())) || known.is_gone {
                continue;
            }
            if known.create == Wish::Acknowledged && !is_asked_for(known, &self.known) {
                self.faults.push(format!("{:?} {}: was acknowledged, is lost", key.0, key.1));
            }
            gone.push(key.clone());
        }
        for key in gone {
            if let Some(known) = self.known.get_mut(&key) {
                known.is_gone = true;
            }
        }
    }

    fn check_present(&mut self, item: &Item) {
        let mut faults = Vec::new();
        let known = self.known(item.kind, &item.name);
        let what = format!("{:?} {}", item.kind, item.name);
        if known.is_gone {
            faults.push(format!("{what}: was gone, is back"));
        }
        // What was unknown is known now, and can be lost no more.
        known.create = Wish::Acknowledged;
        if known.end.is_some() && item.end.is_none() {
            faults.push(format!("{what}: had ended, goes on"));
        }
        if item.is_being_deleted {
            known.delete = Wish::Acknowledged;
        } else if known.delete == Wish::Acknowledged {
            faults.push(format!("{what}: its deletion was acknowledged, is lost"));
        }
        if item.is_cancelled {
            known.cancel = Wish::Acknowledged;
        } else if known.cancel == Wish::Acknowledged {
            faults.push(format!("{what}: its cancel was acknowledged, is lost"));
        }
        for (caller, value) in &known.labels {
            let now = item.labels.get(caller);
            if now.is_none_or(|now| now < value) {
                faults.push(format!("{what}: label {caller} was {value}, is {now:?}"));
            }
        }
        self.faults.extend(faults);
    }

    /// What the agents logged since the last time: the turns whose prompts they were given.
    pub(super) fn take_prompts(&mut self, turns: &[String]) {
        for turn in turns {
            let count = self.prompts.entry(turn.clone()).or_default();
            *count += 1;
            if *count > 1 {
                self.faults.push(format!("Turn {turn}: its prompt was given {count} times"));
            }
            let key = (Kind::Turn, turn.clone());
            if self.known.get(&key).is_none_or(|known| known.create == Wish::None) {
                self.faults.push(format!("Turn {turn}: its prompt was given, nobody made it"));
            }
        }
        for ((_, name), known) in &self.known {
            let Some(end) = &known.end else { continue };
            let fault = match (self.prompts.contains_key(name), end) {
                (true, end) if end.delivery == "NotSent" => "NotSent, but the agent was given it",
                (false, end) if end.phase == "Completed" => "Completed, but no agent was given it",
                _ => continue,
            };
            let fault = format!("Turn {name}: {fault}");
            if !self.faults.contains(&fault) {
                self.faults.push(fault);
            }
        }
    }

    /// Processes that should not be there.
    pub(super) fn take_processes(&mut self, when: &str, left: &[String]) {
        self.faults.extend(left.iter().map(|process| format!("{when}: {process} is left")));
    }

    /// How many turns are known to have ended in each phase and with each delivery.
    pub(super) fn ends(&self) -> BTreeMap<String, usize> {
        let mut ends = BTreeMap::new();
        for end in self.known.values().filter_map(|known| known.end.as_ref()) {
            *ends.entry(format!("{} {}", end.phase, end.delivery)).or_default() += 1;
        }
        ends
    }

    /// Whether an object was once there and no list has it any more.
    pub(super) fn is_gone(&self, uid: &str) -> bool {
        self.known.values().any(|known| known.is_gone && known.uid.as_deref() == Some(uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(name: &str) -> Op {
        Op::CreateSession { name: name.into(), has_prompt: false }
    }

    fn ok(uid: &str) -> Outcome {
        Outcome::Ok(uid.into())
    }

    fn item(kind: Kind, name: &str, uid: &str) -> Item {
        Item {
            kind,
            name: name.into(),
            uid: uid.into(),
            session: (kind == Kind::Turn).then(|| "s".into()),
            is_endless: false,
            is_being_deleted: false,
            is_cancelled: false,
            labels: BTreeMap::new(),
            end: None,
        }
    }

    fn ended(phase: &str, delivery: &str) -> Item {
        let end = End { phase: phase.into(), delivery: delivery.into(), rest: String::new() };
        Item { end: Some(end), ..item(Kind::Turn, "t", "2") }
    }

    /// A session `s` and a turn `t`, both acknowledged.
    fn begun() -> Judge {
        let mut judge = Judge::default();
        judge.take_call(&create("s"), &ok("1"));
        judge.take_call(&Op::CreateTurn { name: "t".into(), session: "s".into() }, &ok("2"));
        judge
    }

    fn both() -> Vec<Item> {
        vec![item(Kind::Session, "s", "1"), item(Kind::Turn, "t", "2")]
    }

    fn check(judge: &Judge, fault: &str) {
        assert_eq!(judge.faults.len(), 1, "{:?}", judge.faults);
        assert!(judge.faults[0].contains(fault), "{:?}", judge.faults);
    }

    #[test]
    fn a_right_history_has_no_fault() {
        let mut judge = begun();
        judge.take_call(&create("maybe"), &Outcome::Unknown);
        judge.take_call(&create("refused"), &Outcome::Fail);
        judge.take_list(&both());
        judge.take_prompts(&["t".into()]);
        let mut items = both();
        items[1] = ended("Completed", "Sent");
        judge.take_list(&items);
        judge.take_prompts(&[]);
        judge.take_call(&Op::Delete { kind: Kind::Session, name: "s".into() }, &Outcome::Unknown);
        judge.take_list(&items);
        judge.take_list(&[]);
        judge.take_processes("after a start", &[]);
        assert_eq!(judge.faults, Vec::<String>::new());
        assert!(judge.is_gone("1") && judge.is_gone("2"));
    }

    #[test]
    fn a_lost_create_is_a_fault() {
        let mut judge = begun();
        judge.take_list(&both()[..1]);
        check(&judge, "Turn t: was acknowledged, is lost");
        let mut judge = Judge::default();
        judge.take_call(&Op::CreateSession { name: "s".into(), has_prompt: true }, &ok("1"));
        judge.take_list(&both()[..1]);
        check(&judge, "Turn s-1: was acknowledged, is lost");
    }

    #[test]
    fn what_was_listed_once_cannot_be_lost_although_its_answer_was() {
        let mut judge = Judge::default();
        judge.take_call(&create("s"), &Outcome::Unknown);
        judge.take_list(&both()[..1]);
        judge.take_list(&[]);
        check(&judge, "is lost");
    }

    #[test]
    fn a_refused_create_that_happened_is_a_fault() {
        let mut judge = Judge::default();
        judge.take_call(&create("s"), &Outcome::Fail);
        judge.take_list(&both()[..1]);
        check(&judge, "nobody made it");
    }

    #[test]
    fn a_deleted_object_that_comes_back_is_a_fault() {
        let mut judge = begun();
        judge.take_call(&Op::Delete { kind: Kind::Turn, name: "t".into() }, &Outcome::Unknown);
        judge.take_list(&both()[..1]);
        judge.take_list(&both());
        check(&judge, "was gone, is back");
    }

    #[test]
    fn a_lost_delete_cancel_or_label_is_a_fault() {
        let ops = [
            (Op::Delete { kind: Kind::Session, name: "s".into() }, "deletion"),
            (Op::Cancel { kind: Kind::Turn, name: "t".into() }, "cancel"),
            (Op::Label { session: "s".into(), caller: 1, value: 7 }, "label 1 was 7"),
        ];
        for (op, fault) in ops {
            let mut judge = begun();
            judge.take_call(&op, &Outcome::Unknown);
            judge.take_list(&both());
            assert_eq!(judge.faults, Vec::<String>::new());
            judge.take_call(&op, &ok("1"));
            judge.take_list(&both());
            check(&judge, fault);
        }
    }

    #[test]
    fn a_changed_end_is_a_fault() {
        let mut judge = begun();
        judge.take_item(&ended("Completed", "Sent"));
        judge.take_item(&ended("Interrupted", "Sent"));
        check(&judge, "ended twice");
    }

    #[test]
    fn a_turn_that_goes_on_after_its_end_is_a_fault() {
        let mut judge = begun();
        judge.take_item(&ended("Interrupted", "Unknown"));
        judge.take_list(&both());
        check(&judge, "had ended, goes on");
    }

    #[test]
    fn a_doubled_prompt_is_a_fault() {
        let mut judge = begun();
        judge.take_prompts(&["t".into()]);
        judge.take_prompts(&["t".into()]);
        check(&judge, "given 2 times");
    }

    #[test]
    fn a_prompt_that_the_record_denies_is_a_fault() {
        let mut judge = begun();
        judge.take_item(&ended("Discarded", "NotSent"));
        judge.take_prompts(&["t".into()]);
        check(&judge, "NotSent, but");
        let mut judge = begun();
        judge.take_item(&ended("Completed", "Sent"));
        judge.take_prompts(&[]);
        check(&judge, "Completed, but no agent");
        let mut judge = begun();
        judge.take_prompts(&["other".into()]);
        check(&judge, "nobody made it");
    }

    #[test]
    fn another_uid_under_the_same_name_is_a_fault() {
        let mut judge = begun();
        judge.take_item(&item(Kind::Session, "s", "9"));
        check(&judge, "was 1, is 9");
    }

    #[test]
    fn a_leftover_process_is_a_fault() {
        let mut judge = begun();
        judge.take_processes("5 s after the kill", &["pid 7".into()]);
        check(&judge, "pid 7 is left");
    }
}
