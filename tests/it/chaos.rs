//! The real daemon is killed at random points, under load, and judged by its history (C1, C8, D2,
//! D3, D4 and P1 to P8 of the promises).
//!
//! `SPAWNLET_TIER` (0, 1, 2) tells how often: 25, 100 or 1000 kills under load. `SPAWNLET_SEED`
//! repeats the calls and the moments of a run as far as the machine's own timing lets it; the seed
//! is printed at the start, and a failed run keeps its directory. `scripts/chaos.sh` runs all of
//! it.
#![allow(clippy::disallowed_methods, reason = "these tests start processes and measure time")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are the result")]

pub(crate) mod daemon;
pub(crate) mod http;
mod judge;
mod load;
pub(crate) mod tree;
mod trees;

use std::collections::{BTreeSet, HashMap};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

pub(crate) use daemon::wait_for;
use daemon::{DEADLINE, Daemon, World};
use http::Client;
use judge::{Item, Kind};
use load::{CALLERS, Load, Told, item, list, turn_of};
use tree::Sighting;

/// How long anything may outlive a killed daemon (P8).
const OUTLIVES_MAX: Duration = Duration::from_secs(5);
/// How long a start may usually take (C1); the median is held to it, for a busy machine's sake.
const START_MAX: Duration = Duration::from_secs(2);
/// Answers at most before a kill.
const ANSWERS_MAX: u32 = 70;
/// The longest time from the last of them to the kill: as long as most turns take.
const DELAY_MAX_US: u64 = 300_000;
/// Directories that are worked on at the same time.
const LANES: u64 = 2;

/// How much is to be done: 0 each commit, 1 before a merge, 2 by hand.
pub(crate) fn tier() -> usize {
    let tier = std::env::var("SPAWNLET_TIER").ok().filter(|tier| !tier.is_empty());
    tier.map_or(0, |tier| tier.parse::<usize>().expect("SPAWNLET_TIER is 0, 1 or 2").min(2))
}

/// Whether the long parts of a tier are to be cut short (`scripts/chaos.sh --short`).
pub(crate) fn is_short() -> bool {
    std::env::var("SPAWNLET_SHORT").is_ok_and(|value| !value.is_empty())
}

pub(crate) fn seed() -> u64 {
    let seed = std::env::var("SPAWNLET_SEED").ok().filter(|seed| !seed.is_empty());
    seed.map_or_else(
        || u64::from(rand::random::<u32>()),
        |seed| seed.parse().expect("SPAWNLET_SEED is a number"),
    )
}

/// These tests measure time; one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a lane counted.
#[derive(Default)]
struct Figures {
    kills: usize,
    kills_in_start: usize,
    calls: u64,
    unanswered: u64,
    refused: u64,
    prompts: usize,
    /// How the turns ended.
    ends: String,
    starts: Vec<Duration>,
    /// How long the last process outlived its daemon, where that was waited for.
    outlived: Vec<Duration>,
}

#[test]
fn a_daemon_killed_at_random_points_keeps_its_promises() {
    let _alone = alone();
    let seed = seed();
    let kills = [25, 100, 1000][tier()];
    println!("seed {seed}: {kills} kills");
    let lanes: Vec<(Figures, Vec<String>)> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                let share = (kills + lane as usize) / LANES as usize;
                scope.spawn(move || Lane::new(seed.wrapping_add(lane << 32)).run(share))
            })
            .collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
    });
    let mut faults = Vec::new();
    let mut starts = Vec::new();
    for (figures, found) in lanes {
        starts.extend(figures.starts.iter().copied());
        println!(
            "{} kills ({} during a start), {} calls ({} unanswered, {} refused), {} prompts given, \
             turns {}; slowest start {:?}; {} times waited, longest life after the kill {:?}",
            figures.kills,
            figures.kills_in_start,
            figures.calls,
            figures.unanswered,
            figures.refused,
            figures.prompts,
            figures.ends,
            figures.starts.iter().max().unwrap_or(&Duration::ZERO),
            figures.outlived.len(),
            figures.outlived.iter().max().unwrap_or(&Duration::ZERO),
        );
        faults.extend(found);
    }
    starts.sort_unstable();
    let median = starts[starts.len() / 2];
    println!("median start {median:?}");
    assert!(faults.is_empty(), "seed {seed}: {} faults: {faults:#?}", faults.len());
    assert!(median < START_MAX, "seed {seed}: a start takes {median:?}");
}

/// One directory and all daemons that work on it.
struct Lane {
    world: World,
    load: Arc<Load>,
    random: StdRng,
    figures: Figures,
    /// Processes of daemons that are dead.
    former: BTreeSet<Sighting>,
    /// How far the log of prompts has been read.
    log_bytes: u64,
}

impl Lane {
    fn new(seed: u64) -> Self {
        let world = World::new(&[]);
        let load = Arc::new(Load::new(seed, world.text("work")));
        Self {
            world,
            load,
            random: StdRng::seed_from_u64(seed),
            figures: Figures::default(),
            former: BTreeSet::new(),
            log_bytes: 0,
        }
    }

    fn run(mut self, kills: usize) -> (Figures, Vec<String>) {
        let mut round = 0;
        while self.figures.kills < kills && self.load.judge.lock().unwrap().faults.is_empty() {
            round += 1;
            if round > 1 && self.random.random_bool(0.15) {
                self.kill_in_start();
                continue;
            }
            let daemon = self.start();
            self.kill_under_load(round, daemon);
        }
        let mut daemon = self.start();
        self.run_down(&mut daemon);
        self.figures.calls = self.load.calls.load(Ordering::Relaxed);
        self.figures.unanswered = self.load.unanswered.load(Ordering::Relaxed);
        self.figures.refused = self.load.refused.load(Ordering::Relaxed);
        let mut judge = self.load.judge.lock().unwrap();
        self.figures.ends = format!("{:?}", judge.ends());
        let faults = std::mem::take(&mut judge.faults);
        drop(judge);
        if !faults.is_empty() {
            println!("kept: {}", self.world.keep().display());
        }
        (self.figures, faults)
    }

    /// Kills a daemon before it is ready, or just after.
    fn kill_in_start(&mut self) {
        let daemon = self.world.start();
        let (_sender, clock) = sync_channel::<()>(1);
        let _ = clock.recv_timeout(Duration::from_millis(self.random.random_range(0..150)));
        self.figures.kills_in_start += 1;
        self.kill(daemon);
    }

    /// Kills a daemon after so many answers, and so long after the last of them: the first finds
    /// the moments of calls, however busy the machine is, the second those of turns.
    fn kill_under_load(&mut self, round: u64, daemon: Daemon) {
        let answers = self.random.random_range(1..ANSWERS_MAX);
        let delay = Duration::from_micros(self.random.random_range(0..DELAY_MAX_US));
        let load = Arc::clone(&self.load);
        std::thread::scope(|scope| {
            let (sender, told) = sync_channel::<Told>(CALLERS);
            for caller in 0..CALLERS {
                let client = self.world.connect(&daemon);
                let (load, sender) = (&load, sender.clone());
                scope.spawn(move || load.call_until_gone(round, caller, client, &sender));
            }
            let mut left = answers;
            let mut end = None;
            loop {
                let wait = end
                    .map_or(DEADLINE, |end: Instant| end.saturating_duration_since(Instant::now()));
                match told.recv_timeout(wait) {
                    Ok(Told::Answered) => {
                        left = left.saturating_sub(1);
                        if left == 0 {
                            end.get_or_insert_with(|| Instant::now() + delay);
                        }
                    }
                    Err(_) if end.is_some() => break,
                    // The daemon was not killed yet.
                    Ok(Told::Gone) | Err(_) => {
                        let fault = format!("round {round}: a living daemon does not answer");
                        load.judge.lock().unwrap().faults.push(fault);
                        break;
                    }
                }
            }
            // From now on nobody listens: a caller that tells is not held up.
            drop(told);
            self.kill(daemon);
        });
    }

    fn kill(&mut self, mut daemon: Daemon) {
        let killed = daemon.kill();
        self.figures.kills += 1;
        self.former.extend(self.world.alive());
        if self.random.random_bool(0.25) {
            match self.world.wait_until_empty(killed, OUTLIVES_MAX) {
                Ok(took) => self.figures.outlived.push(took),
                Err(left) => self.blame("5 s after the kill", &left),
            }
        }
    }

    fn blame(&self, when: &str, left: &BTreeSet<Sighting>) {
        let left: Vec<String> = left.iter().map(Sighting::text).collect();
        self.load.judge.lock().unwrap().take_processes(when, &left);
    }

    /// Starts a daemon and checks all that the dead one promised.
    fn start(&mut self) -> Daemon {
        let mut daemon = self.world.start();
        self.figures.starts.push(daemon.wait_until_ready(&self.world));
        let (former, start_time) = (&self.former, daemon.start_time);
        let marks: BTreeSet<&String> =
            former.iter().filter_map(|sighting| sighting.mark.as_ref()).collect();
        let is_former = |sighting: &Sighting| {
            former.contains(sighting)
                || sighting.start_time < start_time
                || sighting.mark.as_ref().is_some_and(|mark| marks.contains(mark))
        };
        let mut left = self.world.alive();
        left.retain(is_former);
        self.blame("after a start", &left);
        self.former.clear();
        let mut client = self.world.connect(&daemon);
        self.check(&mut client);
        daemon
    }

    /// Compares what is listed, logged and alive with the history, while nobody calls.
    fn check(&mut self, client: &mut Client) {
        // Sessions last: a turn must not be missed because its session went in between.
        let mut items = list(client, Kind::Turn);
        items.extend(list(client, Kind::Session));
        let prompts = self.new_prompts();
        let mut judge = self.load.judge.lock().unwrap();
        judge.take_list(&items);
        judge.take_prompts(&prompts);
        drop(judge);
        self.figures.prompts += prompts.len();
        self.check_processes();
    }

    fn new_prompts(&mut self) -> Vec<String> {
        let Ok(mut log) = std::fs::File::open(self.world.path("prompts")) else {
            return Vec::new();
        };
        log.seek(SeekFrom::Start(self.log_bytes)).unwrap();
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.log_bytes += whole as u64;
        let lines = text[..whole].lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| turn_of(line["text"].as_str().unwrap_or_default())).collect()
    }

    /// No process of a session that is gone, and no two runs of one.
    fn check_processes(&self) {
        let first = self.world.alive();
        let mut both = self.world.alive();
        // What was there twice was there all the time between.
        both.retain(|sighting| first.contains(sighting));
        let mut runs: HashMap<&str, &Sighting> = HashMap::new();
        let mut faults = Vec::new();
        let mut judge = self.load.judge.lock().unwrap();
        for sighting in &both {
            let Some(session) = sighting.session() else { continue };
            if judge.is_gone(session) {
                faults.push(format!("of a deleted session: {} is alive", sighting.text()));
            }
            let other = runs.entry(session).or_insert(sighting);
            if other.mark != sighting.mark {
                faults.push(format!("two runs: {} and {}", other.text(), sighting.text()));
            }
        }
        judge.faults.extend(faults);
    }

    /// The end without a kill: every turn ends, everything is deleted, nothing is left.
    fn run_down(&mut self, daemon: &mut Daemon) {
        let mut client = self.world.connect(daemon);
        let cancel = json!({"spec": {"desiredState": "cancelled"}});
        let is_open = |turn: &Item| turn.end.is_none();
        // The others have waited through all the kills, and have their turn now.
        for turn in list(&mut client, Kind::Turn) {
            if is_open(&turn) && turn.is_endless {
                let answer = client.call("PATCH", &item(Kind::Turn, &turn.name), Some(&cancel));
                let (code, answer) = answer.unwrap();
                assert!([200, 404, 409, 422].contains(&code), "{answer}");
            }
        }
        wait_for("all turns are final", || {
            (!list(&mut client, Kind::Turn).iter().any(is_open)).then_some(())
        });
        self.check(&mut client);
        for session in list(&mut client, Kind::Session) {
            let answer = client.call("DELETE", &item(Kind::Session, &session.name), None);
            let (code, answer) = answer.unwrap();
            assert!([200, 202, 404].contains(&code), "{answer}");
        }
        wait_for("all sessions are gone", || {
            list(&mut client, Kind::Session).is_empty().then_some(())
        });
        assert_eq!(list(&mut client, Kind::Turn), [], "turns outlive their sessions");
        self.blame("after the deletion of all", &self.world.alive());
        wait_for("no zombie is left", || tree::zombies(daemon.pid()).is_empty().then_some(()));
        assert!(daemon.stop().success(), "the daemon stops in order");
        let opened =
            spawnlet::store::sqlite::open(&self.world.data_dir(), Default::default()).unwrap().1;
        assert!(!opened.was_unclean, "{opened:?}");
    }
}
