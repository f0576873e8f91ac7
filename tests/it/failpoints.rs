//! A daemon that dies at each named point (`src/failpoint.rs`), in four lives, and what the next one
//! makes of it: test catalogue C2.
//!
//! Needs a build of the daemon with the feature `failpoints`, whose directory
//! `SPAWNLET_FAILPOINT_BIN` names; without it only the judge is tested. `scripts/chaos.sh --tier 1`
//! builds one and runs it.
//!
//! One table says which life comes by which point and in what state its turn is found afterwards;
//! each pair of the table must be hit. The judge of "at most once" is the scripted agent's own log.
#![allow(clippy::print_stdout, reason = "the figures are the result")]

mod life;

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use spawnlet::failpoint::{ALL, Point};

use life::{Found, Life, Run};

/// In what state the records are found once a daemon without failpoints has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Nothing of the turn: nobody was told that it exists.
    Absent,
    /// The turn was surely not sent and may wait: it was given to an agent once, after the restart.
    RanAgain,
    /// The same of a turn whose caller does not wait: it ended unsent.
    NeverSent,
    /// What was to be sent may have been: it ended, and was not sent again.
    InDoubt,
    /// It was sent, and the daemon died in it.
    CutOff,
    /// It was sent and cancelled.
    Cancelled,
    /// It was sent and had ended by itself.
    Completed,
    /// As if nothing had happened: the daemon died before the life began.
    Undisturbed,
    /// It may have come to its end before the kill.
    CutOffOrCompleted,
    /// Parent, child and turn are gone, as somebody wished.
    Gone,
}

/// Which points a life comes by, and what is found after a death there. None: it does not.
fn expected(life: Life, point: Point) -> Option<Expected> {
    use Expected::{
        Absent, Completed, CutOff, CutOffOrCompleted, Gone, InDoubt, NeverSent, RanAgain,
        Undisturbed,
    };
    let has_child = matches!(life, Life::Child | Life::Delete);
    let unsent = if has_child { NeverSent } else { RanAgain };
    Some(match point {
        Point::MigrationBefore
        | Point::MigrationAfter
        | Point::ManifestBefore
        | Point::ManifestAfter => match life {
            Life::Turn | Life::Child | Life::Cancel => Undisturbed,
            Life::Delete => Gone,
        },
        Point::SweepBefore | Point::SweepAfter | Point::Recovered => match life {
            Life::Turn | Life::Child => CutOffOrCompleted,
            Life::Cancel | Life::Delete => CutOff,
        },
        Point::AdmitBefore if !has_child => Absent,
        Point::AdmitAfter if !has_child => RanAgain,
        Point::ChildBefore if has_child => Absent,
        Point::ChildAfter if has_child => NeverSent,
        Point::LaunchingBefore
        | Point::LaunchingAfter
        | Point::LaunchBefore
        | Point::LaunchAfter
        | Point::GateBefore
        | Point::GateAfter
        | Point::GateOpen
        | Point::DispatchBefore => unsent,
        // It says `Unknown`, and the journal knows better: unsent, and not tried again.
        Point::DispatchAfter => NeverSent,
        Point::Journalled | Point::Submitted | Point::SentBefore => InDoubt,
        Point::SentAfter => CutOff,
        Point::CancelBefore | Point::CancelAfter if life == Life::Cancel => Expected::Cancelled,
        Point::TurnEndBefore => match life {
            Life::Turn | Life::Child => CutOff,
            Life::Cancel => Expected::Cancelled,
            Life::Delete => Gone,
        },
        Point::TurnEndAfter => match life {
            Life::Turn | Life::Child => Completed,
            Life::Cancel => Expected::Cancelled,
            Life::Delete => Gone,
        },
        Point::DeleteBefore if life == Life::Delete => CutOff,
        Point::DeleteAfter
        | Point::CascadeBefore
        | Point::CascadeAfter
        | Point::ExitNoticed
        | Point::GoneBefore
        | Point::GoneAfter
        | Point::RemovalBefore
        | Point::RemovalAfter
            if life == Life::Delete =>
        {
            Gone
        }
        _ => return None,
    })
}

/// What is wrong with what was found.
fn judge(life: Life, expected: Expected, found: &Found) -> Vec<String> {
    let mut faults = found.faults.clone();
    let endless = matches!(life, Life::Cancel | Life::Delete);
    if found.prompts > 1 {
        faults.push(format!("the prompt was given {} times", found.prompts));
    }
    if found.was_accepted && found.turn.is_none() && expected != Expected::Gone {
        faults.push("what was acknowledged is not there".to_owned());
    }
    let turn = found.turn.as_ref().map(|turn| (turn.0.as_str(), turn.1.as_str()));
    let prompts = found.prompts;
    let is_so = match expected {
        Expected::Absent | Expected::Gone => turn.is_none(),
        // An endless one is cancelled by the test once it runs.
        Expected::RanAgain | Expected::Undisturbed if endless => {
            turn == Some(("Cancelled", "Sent")) && prompts == 1
        }
        Expected::RanAgain | Expected::Undisturbed | Expected::Completed => {
            turn == Some(("Completed", "Sent")) && prompts == 1
        }
        Expected::NeverSent => turn == Some(("Interrupted", "NotSent")) && prompts == 0,
        Expected::InDoubt => turn == Some(("Interrupted", "Unknown")),
        Expected::CutOff => turn == Some(("Interrupted", "Sent")) && prompts == 1,
        Expected::Cancelled => turn == Some(("Cancelled", "Sent")) && prompts == 1,
        Expected::CutOffOrCompleted => {
            matches!(turn, Some(("Interrupted" | "Completed", "Sent"))) && prompts == 1
        }
    };
    if !is_so {
        faults.push(format!("expected {expected:?}; found {turn:?}, prompted {prompts} times"));
    }
    faults
}

#[test]
fn a_daemon_that_dies_at_any_named_point_leaves_the_documented_state() {
    let Some(bin) = std::env::var_os("SPAWNLET_FAILPOINT_BIN").filter(|bin| !bin.is_empty()) else {
        println!("skipped: SPAWNLET_FAILPOINT_BIN names no build with the feature failpoints");
        return;
    };
    let program = PathBuf::from(bin).join("spawnlet");
    let only = std::env::var("SPAWNLET_FAILPOINT_ONLY").unwrap_or_default();
    let lives = [Life::Turn, Life::Child, Life::Cancel, Life::Delete];
    let pairs: Vec<(Life, Point, Expected)> = lives
        .into_iter()
        .flat_map(|life| ALL.iter().map(move |point| (life, *point)))
        .filter(|(_, point)| point.name().contains(&only))
        .filter_map(|(life, point)| Some((life, point, expected(life, point)?)))
        .collect();
    let began = Instant::now();
    let (left, faults) = (Mutex::new(pairs.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = left.lock().unwrap().next();
                    let Some(&(life, point, expected)) = next else { return };
                    let found = Run::new(life, point, &program).go();
                    let bad = judge(life, expected, &found);
                    if !bad.is_empty() {
                        let what = format!("{life:?} at {}: {bad:?}", point.name());
                        println!("{what}");
                        faults.lock().unwrap().push(what);
                    }
                }
            });
        }
    });
    println!("{} deaths at {} points: {:?}", pairs.len(), ALL.len(), began.elapsed());
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{faults:#?}");
    if only.is_empty() {
        assert!(pairs.len() >= 100, "{} pairs", pairs.len());
    }
}

#[test]
fn every_named_point_is_in_the_table_of_some_life() {
    let lives = [Life::Turn, Life::Child, Life::Cancel, Life::Delete];
    for point in ALL {
        assert!(lives.iter().any(|life| expected(*life, *point).is_some()), "{}", point.name());
    }
}

/// The negative control: the judge finds fault with each way in which a promise is broken.
#[test]
fn the_judge_of_deaths_finds_broken_promises() {
    let found = |phase: &str, delivery: &str, prompts| Found {
        turn: Some((phase.to_owned(), delivery.to_owned())),
        prompts,
        was_accepted: true,
        faults: Vec::new(),
    };
    let good = found("Interrupted", "Unknown", 1);
    assert_eq!(judge(Life::Turn, Expected::InDoubt, &good), Vec::<String>::new());
    let bad = [
        (Expected::InDoubt, found("Completed", "Sent", 2)),
        (Expected::InDoubt, found("Completed", "Sent", 1)),
        (Expected::RanAgain, found("Completed", "Sent", 2)),
        (Expected::RanAgain, found("Interrupted", "Unknown", 0)),
        (Expected::CutOff, found("Interrupted", "Sent", 0)),
        (Expected::Completed, found("Interrupted", "Sent", 1)),
        (Expected::NeverSent, found("Interrupted", "NotSent", 1)),
        (Expected::Gone, found("Interrupted", "Sent", 1)),
        (Expected::Completed, Found { turn: None, ..good.clone() }),
        (Expected::InDoubt, Found { faults: vec!["a process is left".to_owned()], ..good }),
    ];
    for (expected, found) in bad {
        assert_ne!(judge(Life::Turn, expected, &found), Vec::<String>::new(), "{expected:?}");
    }
}
