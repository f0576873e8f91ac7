//! The work queue: one entry a key, one worker a key at a time, delays, and back-off for failures.
//!
//! Three sets, as in client-go: `order` holds what waits, `dirty` what must be worked on (again),
//! `processing` what is being worked on. A key that is added while it is processed is dirty and
//! comes back when the worker is done, so that no change is lost and no two workers meet.
//!
//! The core is pure: time goes in as a value. [`WorkQueue`] adds the waiting.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::api::report::Trigger;
use crate::clock::{Mono, SharedClock};
use crate::plan::deadlines::READ_FIRST;
use crate::plan::world::Standstill;

/// The first pause after a failure.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// The longest pause after a failure.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// A key that did not fail for so long starts anew.
const CALM: Duration = Duration::from_secs(120);
/// Retries of all keys together, a second; a broken store must not be hammered.
const RETRIES_PER_SECOND: u64 = 10;
/// A timer that is taken so long after its end says that the daemon did not run meanwhile.
const LATE_MIN: Duration = Duration::from_millis(100);
/// Standstills that follow one another sooner than what was missed is read are one, up to so long: a
/// daemon that is behind for ever still comes to its judgements.
const STANDSTILL_MAX: Duration = Duration::from_secs(30);
/// Retries that may come at once.
const RETRY_BURST: u64 = 50;

/// What `poll` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Polled<K> {
    /// A key to work on, with everything that set it off since it was last taken.
    Ready(K, BTreeSet<Trigger>),
    /// Nothing before this moment.
    Wait(Mono),
    /// Nothing until something is added.
    Idle,
}

/// The sets and timers, without the waiting.
#[derive(Debug)]
pub struct Core<K> {
    order: VecDeque<K>,
    dirty: HashMap<K, BTreeSet<Trigger>>,
    processing: BTreeSet<K>,
    timers: BTreeMap<(Mono, K), Trigger>,
    timer_of: HashMap<K, Mono>,
    failures: HashMap<K, Failures>,
    /// When timers were last found to have ended a while ago, and when the first of those was found.
    standstill: Option<(Standstill, Mono)>,
    /// When the next retry beyond the burst may run: a bucket that fills with time.
    bucket_free_at: Mono,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Mono,
}

impl<K> Default for Core<K> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            dirty: HashMap::new(),
            processing: BTreeSet::new(),
            timers: BTreeMap::new(),
            timer_of: HashMap::new(),
            failures: HashMap::new(),
            standstill: None,
            bucket_free_at: Mono::default(),
        }
    }
}

impl<K: Clone + Ord + Hash> Core<K> {
    /// Wants the key worked on.
    pub fn add(&mut self, key: K, trigger: Trigger) {
        if let Some(triggers) = self.dirty.get_mut(&key) {
            triggers.insert(trigger);
            return;
        }
        self.dirty.insert(key.clone(), BTreeSet::from([trigger]));
        if !self.processing.contains(&key) {
            self.order.push_back(key);
        }
    }

    /// Wants the key worked on at `at`; of several times the earliest counts.
    pub fn add_at(&mut self, key: K, at: Mono, trigger: Trigger) {
        if let Some(&earlier) = self.timer_of.get(&key) {
            if earlier <= at {
                return;
            }
            self.timers.remove(&(earlier, key.clone()));
        }
        self.timer_of.insert(key.clone(), at);
        self.timers.insert((at, key), trigger);
    }

    /// Wants the key worked on after its back-off. `jitter` is between 0 and 1.
    pub fn retry(&mut self, key: K, now: Mono, jitter: f64) -> Duration {
        let failures = self.failures.entry(key.clone()).or_insert(Failures { count: 0, last: now });
        if now.since(failures.last) >= CALM {
            failures.count = 0;
        }
        let exponent = failures.count.min(16);
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        let own = BACKOFF_FIRST.saturating_mul(1 << exponent).min(BACKOFF_MAX);
        let own = own + own.mul_f64(jitter.clamp(0.0, 1.0) * 0.1);
        let pause = own.max(self.take_token(now));
        self.add_at(key, now.plus(pause), Trigger::Timer);
        pause
    }

    /// How long until the bucket has a token for this retry.
    fn take_token(&mut self, now: Mono) -> Duration {
        let interval = Duration::from_millis(1000 / RETRIES_PER_SECOND);
        let full_at = Mono(now.0.saturating_sub(RETRY_BURST * 1000 / RETRIES_PER_SECOND));
        self.bucket_free_at = self.bucket_free_at.max(full_at).plus(interval);
        self.bucket_free_at.since(now)
    }

    /// The key was worked on without a failure.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Wants nothing worked on any more but what is being worked on.
    pub fn clear(&mut self) {
        self.order.clear();
        self.timers.clear();
        self.timer_of.clear();
        let processing = &self.processing;
        self.dirty.retain(|key, _| processing.contains(key));
    }

    /// Takes the next key. Its timer goes: the pass says anew when to come back.
    pub fn poll(&mut self, now: Mono) -> Polled<K> {
        while let Some(((at, _), _)) = self.timers.first_key_value() {
            if *at > now {
                break;
            }
            let Some(((at, key), trigger)) = self.timers.pop_first() else { break };
            if now.since(at) >= LATE_MIN {
                self.stood_still(at, now);
            }
            self.timer_of.remove(&key);
            self.add(key, trigger);
        }
        let Some(key) = self.order.pop_front() else {
            return match self.timers.first_key_value() {
                Some(((at, _), _)) => Polled::Wait(*at),
                None => Polled::Idle,
            };
        };
        let triggers = self.dirty.remove(&key).unwrap_or_default();
        if let Some(at) = self.timer_of.remove(&key) {
            self.timers.remove(&(at, key.clone()));
        }
        self.processing.insert(key.clone());
        Polled::Ready(key, triggers)
    }

    /// The worker of the key is done; what was added meanwhile comes next.
    pub fn done(&mut self, key: &K) {
        self.processing.remove(key);
        if self.dirty.contains_key(key) {
            self.order.push_back(key.clone());
        }
    }

    /// When nobody took keys for a while: the daemon was stopped, or is behind.
    #[must_use]
    pub fn standstill(&self) -> Option<Standstill> {
        self.standstill.map(|(standstill, _)| standstill)
    }

    fn stood_still(&mut self, from: Mono, now: Mono) {
        let (from, first) = match self.standstill {
            Some((known, first))
                if from <= known.to.plus(READ_FIRST) && now.since(first) <= STANDSTILL_MAX =>
            {
                (known.from, first)
            }
            Some(_) | None => (from, now),
        };
        self.standstill = Some((Standstill { from, to: now }, first));
    }

    /// Keys that wait or are worked on.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.order.len() + self.processing.len()
    }
}

/// The queue that tasks share: anybody adds, one loop takes.
pub struct WorkQueue<K> {
    core: Mutex<Core<K>>,
    changed: Notify,
    clock: SharedClock,
}

impl<K: Clone + Ord + Hash> WorkQueue<K> {
    /// An empty queue.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self { core: Mutex::new(Core::default()), changed: Notify::new(), clock }
    }

    fn core(&self) -> MutexGuard<'_, Core<K>> {
        // A panic in here would be in the standard library's collections: what they hold is valid.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wants the key worked on now.
    pub fn add(&self, key: K, trigger: Trigger) {
        self.core().add(key, trigger);
        self.changed.notify_one();
    }

    /// Wants the key worked on after `pause`, if not before.
    pub fn add_after(&self, key: K, pause: Duration, trigger: Trigger) {
        let at = self.clock.now().mono.plus(pause);
        self.core().add_at(key, at, trigger);
        self.changed.notify_one();
    }

    /// Wants the key worked on after its back-off, and tells how long that is.
    pub fn retry(&self, key: K) -> Duration {
        let now = self.clock.now().mono;
        let pause = self.core().retry(key, now, rand::random::<f64>());
        self.changed.notify_one();
        pause
    }

    /// The key was worked on without a failure.
    pub fn forget(&self, key: &K) {
        self.core().forget(key);
    }

    /// Wants nothing worked on any more but what is being worked on.
    pub fn clear(&self) {
        self.core().clear();
    }

    /// The worker of the key is done.
    pub fn done(&self, key: &K) {
        self.core().done(key);
        self.changed.notify_one();
    }

    /// When nobody took keys for a while.
    #[must_use]
    pub fn standstill(&self) -> Option<Standstill> {
        self.core().standstill()
    }

    /// Keys that wait or are worked on.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.core().depth()
    }

    /// The next key. Only one task may wait here.
    ///
    /// # Cancel safety
    ///
    /// A key is taken only when the future is ready: dropping it before loses nothing.
    pub async fn next(&self) -> (K, BTreeSet<Trigger>) {
        loop {
            let now = self.clock.now().mono;
            let polled = self.core().poll(now);
            match polled {
                Polled::Ready(key, triggers) => return (key, triggers),
                Polled::Idle => self.changed.notified().await,
                Polled::Wait(at) => {
                    // One millisecond more: the clock counts whole ones and may round down.
                    let pause = at.since(now) + Duration::from_millis(1);
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn ready<K: Clone + Ord + Hash>(core: &mut Core<K>, now: u64) -> Option<K> {
        match core.poll(Mono(now)) {
            Polled::Ready(key, _) => Some(key),
            Polled::Wait(_) | Polled::Idle => None,
        }
    }

    #[test]
    fn a_key_added_twice_is_taken_once() {
        let mut core = Core::default();
        core.add("a", Trigger::Watch);
        core.add("a", Trigger::Timer);
        let both = BTreeSet::from([Trigger::Watch, Trigger::Timer]);
        assert_eq!(core.poll(Mono(0)), Polled::Ready("a", both));
        assert_eq!(core.poll(Mono(0)), Polled::Idle);
    }

    #[test]
    fn a_key_added_while_it_is_processed_comes_back_when_that_is_done() {
        let mut core = Core::default();
        core.add("a", Trigger::Watch);
        assert_eq!(ready(&mut core, 0), Some("a"));
        core.add("a", Trigger::Watch);
        assert_eq!(ready(&mut core, 0), None);
        core.done(&"a");
        assert_eq!(ready(&mut core, 0), Some("a"));
    }

    #[test]
    fn what_waits_is_forgotten_and_what_is_processed_comes_back() {
        let mut core = Core::default();
        for key in ["a", "b", "c"] {
            core.add(key, Trigger::Watch);
        }
        core.add_at("d", Mono(5), Trigger::Timer);
        assert_eq!(ready(&mut core, 0), Some("a"));
        core.add("a", Trigger::Watch);
        core.clear();
        core.add("e", Trigger::Process);
        core.done(&"a");
        assert_eq!([ready(&mut core, 9), ready(&mut core, 9)], [Some("e"), Some("a")]);
        core.done(&"a");
        core.done(&"e");
        assert_eq!(core.poll(Mono(9)), Polled::Idle);
        core.add("b", Trigger::Watch);
        assert_eq!(ready(&mut core, 9), Some("b"), "what is forgotten can be added again");
    }

    #[test]
    fn timers_that_are_taken_late_tell_of_a_standstill() {
        let stood = |from, to| Some(Standstill { from: Mono(from), to: Mono(to) });
        let mut core = Core::default();
        let at = |core: &mut Core<u32>, due: &[u64], now: u64| {
            for (key, due) in (0..).zip(due) {
                core.add_at(key, Mono(*due), Trigger::Timer);
            }
            while let Some(key) = ready(core, now) {
                core.done(&key);
            }
            core.standstill()
        };
        assert_eq!(at(&mut core, &[1000], 1099), None);
        // From the first that was missed; what follows before that is read belongs to it.
        assert_eq!(at(&mut core, &[9000, 5000, 9999], 10_000), stood(5000, 10_000));
        assert_eq!(at(&mut core, &[10_500], 11_000), stood(5000, 11_000));
        assert_eq!(at(&mut core, &[13_100], 13_101), stood(5000, 11_000));
        assert_eq!(at(&mut core, &[13_200], 13_300), stood(13_200, 13_300));
        // A daemon that is behind all the time has looked at what was over long ago.
        let mut last = None;
        for second in 14..60 {
            last = at(&mut core, &[second * 1000], second * 1000 + 200);
        }
        assert!(last.unwrap().from > Mono(40_000), "{last:?}");
    }

    #[test]
    fn of_two_times_the_earlier_counts() {
        let mut core = Core::default();
        core.add_at("a", Mono(50), Trigger::Timer);
        core.add_at("a", Mono(90), Trigger::Timer);
        core.add_at("a", Mono(20), Trigger::Timer);
        assert_eq!(core.poll(Mono(10)), Polled::Wait(Mono(20)));
        assert_eq!(ready(&mut core, 20), Some("a"));
        core.done(&"a");
        assert_eq!(core.poll(Mono(100)), Polled::Idle);
    }

    #[test]
    fn retries_double_up_to_a_minute_and_start_anew_after_calm() {
        let mut core = Core::default();
        let mut now = Mono(1_000_000);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            pauses.push(core.retry("a", now, 0.0).as_millis());
            now = now.plus(Duration::from_secs(61));
        }
        assert_eq!(pauses[..4], [100, 200, 400, 800]);
        assert_eq!(pauses[11], 60_000);
        now = now.plus(CALM);
        assert_eq!(core.retry("a", now, 1.0).as_millis(), 110);
    }

    #[test]
    fn a_storm_of_failures_is_spread_to_ten_a_second() {
        let mut core = Core::default();
        let now = Mono(1_000_000);
        let pauses: Vec<_> = (0..150).map(|key| core.retry(key, now, 0.0)).collect();
        assert_eq!(pauses[0], Duration::from_millis(100));
        assert_eq!(pauses[149], Duration::from_secs(10));
    }

    /// Test catalogue B3: a million random operations over 50 keys and 4 workers.
    #[test]
    fn random_work_meets_no_key_twice_and_loses_none() {
        let is_slow = std::env::var("SPAWNLET_TIER").is_ok_and(|tier| tier == "1" || tier == "2");
        let operations = if cfg!(debug_assertions) && !is_slow { 200_000 } else { 1_000_000 };
        let mut random = StdRng::seed_from_u64(7);
        let mut core: Core<u8> = Core::default();
        let mut working: Vec<u8> = Vec::new();
        let mut wanted: BTreeSet<u8> = BTreeSet::new();
        let mut now = Mono(0);
        for _ in 0..operations {
            now = now.plus(Duration::from_millis(random.random_range(0..3)));
            let key = random.random_range(0..50);
            match random.random_range(0..6) {
                0 => {
                    core.add(key, Trigger::Watch);
                    wanted.insert(key);
                }
                1 => core.add_at(key, now.plus(Duration::from_millis(20)), Trigger::Timer),
                2 | 3 if working.len() < 4 => {
                    if let Polled::Ready(key, _) = core.poll(now) {
                        assert!(!working.contains(&key), "two workers met at {key}");
                        wanted.remove(&key);
                        working.push(key);
                    }
                }
                4 if !working.is_empty() => {
                    let key = working.swap_remove(random.random_range(0..working.len()));
                    core.done(&key);
                }
                5 if !working.is_empty() => {
                    let key = working.swap_remove(random.random_range(0..working.len()));
                    let pause = core.retry(key, now, random.random());
                    assert!(pause >= BACKOFF_FIRST);
                    core.done(&key);
                }
                _ => {}
            }
        }
        for key in working.drain(..) {
            core.done(&key);
        }
        while let Polled::Ready(key, _) = core.poll(now) {
            wanted.remove(&key);
            core.done(&key);
        }
        assert_eq!(wanted, BTreeSet::new(), "keys were lost");
    }
}
