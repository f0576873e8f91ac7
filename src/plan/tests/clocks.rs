//! The clocks: which counts, what each is for, and that the wall clock is none of them.

use std::time::Duration;

use super::*;
use crate::api::session::RunBudget;
use crate::clock::{Clock as _, ManualClock, Mono, Now};
use crate::plan::deadlines::{self, Clock, Due, first_over};

const ALL: [Clock; 5] = [Clock::Idle, Clock::Start, Clock::Budget, Clock::Ttl, Clock::Inactivity];

fn orders(left: &[Clock]) -> Vec<Vec<Clock>> {
    if left.is_empty() {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for (index, &first) in left.iter().enumerate() {
        let others: Vec<_> =
            left.iter().enumerate().filter(|(at, _)| *at != index).map(|(_, &it)| it).collect();
        for mut order in orders(&others) {
            order.insert(0, first);
            found.push(order);
        }
    }
    found
}

/// Test catalogue A4: all orders of all clocks; all apart, the first two at once, and all at once.
#[test]
fn of_clocks_that_are_over_the_first_counts_and_of_equals_the_mildest() {
    let orders = orders(&ALL);
    assert_eq!(orders.len(), 120);
    for order in orders {
        let over = |ago: fn(usize) -> usize| -> Vec<_> {
            let due = |place| Due::Over(Duration::from_secs(10 - ago(place) as u64));
            order.iter().enumerate().map(|(place, &clock)| (clock, due(place))).collect()
        };
        assert_eq!(first_over(&over(|place| place)), Some(order[0]), "{order:?}");
        let mildest = order[0].min(order[1]);
        assert_eq!(first_over(&over(|place| place.max(1))), Some(mildest), "{order:?}");
        assert_eq!(first_over(&over(|_| 0)), Some(Clock::Idle), "{order:?}");
    }
    assert_eq!(first_over(&[(Clock::Ttl, Due::In(Duration::ZERO))]), None);
}

/// Test catalogue A4: the grace of a cancel and the ttl, in both orders and at once.
#[test]
fn a_turn_that_was_cancelled_before_its_sessions_ttl_ended_is_cancelled() {
    for ttl in [3, 5, 8] {
        let mut model = cancelled(CancelBy::Operator);
        model.behaviour = Behaviour::Deaf;
        model.session.as_mut().unwrap().spec.ttl = Some(Dur::from_secs(ttl));
        model.converge(Duration::from_secs(60));
        let status = &model.turns[0].status;
        assert_eq!(status.phase, TurnPhase::Cancelled, "ttl {ttl}");
        let end = model.session.unwrap().status.end.unwrap();
        assert_eq!(end.reason, "TtlExpired");
    }
}

/// When the running turn of a session with these timeouts is over by silence; seconds.
fn silence(turn: u64, tool: Option<u64>, heard: u64, call: Option<u64>) -> Option<u64> {
    let mut model = running();
    let spec = &mut model.session.as_mut().unwrap().spec;
    spec.turn_inactivity_timeout = Dur::from_secs(turn);
    spec.tool_inactivity_timeout = tool.map(Dur::from_secs);
    let live = model.live_mut().unwrap();
    live.last_activity = Mono(heard * 1000);
    live.tool_heard = call.map(|at| Mono(at * 1000));
    let now = Now { time: Time::from_millis(EPOCH_MS), mono: Mono(0) };
    let world = model.world().unwrap();
    let turns: Vec<_> = world.turns.iter().map(|turn| turn.record.clone()).collect();
    let clocks = deadlines::running(&world, &world.session, &turns, now);
    let due = clocks.into_iter().find(|(clock, _)| *clock == Clock::Inactivity)?.1;
    let Due::In(wait) = due else { panic!("over at the beginning") };
    Some(wait.as_secs())
}

/// Known failures B05, B06.
#[test]
fn a_tool_call_has_a_clock_of_its_own_and_one_that_was_lost_switches_no_watchdog_off() {
    for (turn, tool, heard, call, wanted, why) in [
        (600, None, 5, None, Some(605), "no tool call"),
        (600, None, 5, Some(5), Some(605), "the same by default"),
        (600, Some(1800), 5, None, Some(605), "a longer one counts for calls only"),
        (600, Some(1800), 5, Some(5), Some(1805), "a call in progress"),
        (600, Some(1800), 100, Some(5), Some(1805), "traffic takes nothing from a call"),
        (600, Some(1800), 1500, Some(5), Some(2100), "traffic adds as ever"),
        (600, Some(1800), 5000, Some(5), Some(5600), "a lost completion is forgotten"),
        (600, Some(60), 5, Some(5), Some(65), "a shorter one"),
        (600, Some(60), 50, Some(5), Some(110), "re-armed by any traffic"),
        (600, Some(60), 70, Some(5), Some(670), "a lost completion is forgotten"),
        (600, Some(0), 5, Some(5), None, "off for calls"),
        (600, Some(0), 5, None, Some(605), "off for calls only"),
        (0, Some(60), 5, None, None, "off but for calls"),
        (0, Some(60), 5, Some(5), Some(65), "off but for calls"),
        (0, None, 5, Some(5), None, "off"),
    ] {
        assert_eq!(silence(turn, tool, heard, call), wanted, "{why}: {turn} {tool:?} {heard}");
    }
}

/// Nobody tells the planner that a tool call begins: it looks when the shorter clock could end.
#[test]
fn a_shorter_clock_of_tool_calls_is_looked_at_in_time() {
    let mut model = running();
    let spec = &mut model.session.as_mut().unwrap().spec;
    spec.tool_inactivity_timeout = Some(Dur::from_secs(60));
    let plan = model.pass().unwrap();
    assert_eq!(plan.requeue, crate::plan::Requeue::After(Duration::from_secs(60)));
}

fn with_budget(budget: RunBudget) -> Model {
    let mut model = running();
    model.turns[0].status.dispatched_at = Some(Time::from_millis(EPOCH_MS));
    model.live_mut().unwrap().prompt.as_mut().unwrap().budget = budget;
    model
}

/// The turn's end, which takes nothing else with it.
#[track_caller]
fn is_out_of_budget(mut model: Model, word: &str) {
    model.converge(Duration::from_secs(60));
    let turn = &model.turns[0].status;
    assert_eq!(turn.phase, TurnPhase::Expired, "{turn:#?}");
    assert_eq!(turn.code, Some(Code::TurnBudgetExhausted));
    assert_eq!(turn.cancel.as_ref().unwrap().by, CancelBy::Budget);
    assert!(turn.message.contains(word), "{}", turn.message);
    let session = model.session.unwrap();
    assert_eq!(session.status.end, None, "the session goes on");
}

#[test]
fn a_turn_over_its_budget_is_cancelled_and_its_session_goes_on() {
    for behaviour in [Behaviour::Endless, Behaviour::Deaf] {
        let time = RunBudget { timeout: Some(Dur::from_secs(30)), ..RunBudget::default() };
        let mut model = with_budget(time);
        model.behaviour = behaviour;
        is_out_of_budget(model, "runBudget.timeout");

        let steps = RunBudget { max_steps: Some(3), ..RunBudget::default() };
        let mut model = with_budget(steps);
        model.behaviour = behaviour;
        let prompt = model.live_mut().unwrap().prompt.as_mut().unwrap();
        prompt.steps = 4;
        prompt.over_budget_since = Some(Mono(0));
        is_out_of_budget(model, "maxSteps is 3");
    }
}

#[test]
fn a_budget_is_fixed_when_the_prompt_is_given() {
    let mut model = Model::new();
    model.behaviour = Behaviour::Endless;
    model.session.as_mut().unwrap().spec.run_budget.max_steps = Some(3);
    model.turns.push(turn("s-1", UID));
    model.converge(Duration::ZERO);
    model.session.as_mut().unwrap().spec.run_budget.max_steps = Some(9);
    model.pass();
    let prompt = model.live_mut().unwrap().prompt.as_ref().unwrap();
    assert_eq!(prompt.budget.max_steps, Some(3));
}

#[test]
fn what_turns_used_is_summed_up_on_their_session() {
    let mut model = running();
    model.session.as_mut().unwrap().status.usage = Some(serde_json::json!({"totalTokens": 7}));
    let live = model.live_mut().unwrap();
    let report = crate::plan::usage::Report {
        used: Some(900),
        size: Some(1000),
        cost: Some(0.5),
        currency: Some("USD".into()),
    };
    live.prompt.as_mut().unwrap().spent = live.usage.take(report, true);
    live.prompt.as_mut().unwrap().end = Some(PromptEnd {
        answer: Ok(StopReason::EndTurn),
        is_after_cancel: false,
        usage: Some(serde_json::json!({"totalTokens": 5, "outputTokens": 2})),
    });
    model.pass();
    assert_eq!(
        model.turns[0].status.usage,
        Some(serde_json::json!({"totalTokens": 5, "outputTokens": 2, "contextGrowth": 900,
            "cost": {"amount": 0.5, "currency": "USD"}}))
    );
    let session = model.session.unwrap();
    assert_eq!(
        session.status.usage,
        Some(serde_json::json!({"totalTokens": 12, "outputTokens": 2,
            "context": {"used": 900, "size": 1000},
            "cost": {"amount": 0.5, "currency": "USD"}}))
    );
}

/// Known failures B12.
#[test]
fn a_turn_with_traffic_and_no_progress_is_shown_as_stalled() {
    let mut model = running();
    let condition = |model: &Model, kind: &str| {
        let session = model.session.as_ref().unwrap();
        session.status.conditions.get(kind).map(|it| (it.status, it.reason.clone()))
    };
    use crate::api::condition::ConditionStatus::{False, True};
    model.pass();
    assert_eq!(condition(&model, "Stalled"), None);
    assert_eq!(condition(&model, "Progressing"), Some((True, "TurnActive".into())));
    // Heartbeats only, for as long as a silent agent would be allowed.
    model.elapsed = Duration::from_secs(600);
    model.live_mut().unwrap().last_activity = Mono(599_000);
    model.pass();
    assert_eq!(condition(&model, "Stalled"), Some((True, "NoProgress".into())));
    assert_eq!(condition(&model, "Progressing"), Some((False, "NoProgress".into())));
    assert_eq!(model.session.as_ref().unwrap().status.end, None, "it is shown, not ended");
    model.live_mut().unwrap().last_progress = Mono(600_000);
    model.pass();
    assert_eq!(condition(&model, "Stalled"), None);
}

#[test]
fn the_eldest_of_too_many_idle_children_hibernates() {
    for (can_go_on, ends) in [(true, false), (false, true)] {
        let mut model = open();
        let status = &mut model.session.as_mut().unwrap().status;
        (status.prompted, status.idle_since) = (true, Some(Time::from_millis(EPOCH_MS)));
        if !can_go_on {
            status.capabilities = None;
        }
        model.crowd = Crowd { includes_this: false, others: vec!["elder".into()] };
        let plan = model.pass().unwrap();
        assert_eq!(plan.wakes, [crate::api::Name::from("elder")]);
        assert!(model.live_mut().unwrap().stop.is_none());
        model.crowd = Crowd { includes_this: true, others: Vec::new() };
        for _ in 0..12 {
            model.pass();
            model.agent_acts();
            model.elapsed += Duration::from_secs(1);
        }
        let status = &model.session.as_ref().unwrap().status;
        assert_eq!((status.process.is_none(), status.end.is_some()), (true, ends));
    }
}

/// Test catalogue I3, the planner's part: a daemon that was stopped reads before it judges.
#[test]
fn a_daemon_that_was_stopped_reads_before_it_says_that_an_agent_was_silent() {
    let mut model = running();
    model.elapsed = Duration::from_secs(900);
    model.standstill = Some(Standstill { from: Mono(600_000), to: Mono(900_000) });
    let plan = model.pass().unwrap();
    assert_eq!(model.session.as_ref().unwrap().status.end, None);
    assert_eq!(plan.requeue, crate::plan::Requeue::After(Duration::from_secs(2)));
    model.elapsed += Duration::from_secs(2);
    model.pass();
    let end = model.session.unwrap().status.end.unwrap();
    assert_eq!(end.reason, "Inactivity", "silence stays silence");
}

#[test]
fn a_standstill_that_came_after_a_silence_does_not_make_it_longer() {
    let mut model = running();
    model.elapsed = Duration::from_secs(900);
    model.standstill = Some(Standstill { from: Mono(700_000), to: Mono(900_000) });
    model.pass();
    assert_eq!(model.session.unwrap().status.end.unwrap().reason, "Inactivity");
}

/// A small generator of our own: a seed is all that a run depends on.
struct Seed(u64);

impl Seed {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Lives through one seed's jumps of the wall clock; tells what was wrong.
fn live_through(seed: u64, reads_wall: bool) -> Result<(), String> {
    const HOUR_MS: i64 = 3_600_000;
    let mut random = Seed(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut model = open();
    let ttl = 60 + random.below(7200);
    let idle = 60 + random.below(7200);
    let session = model.session.as_mut().unwrap();
    session.spec.ttl = Some(Dur::from_secs(ttl));
    session.spec.idle_timeout = Dur::from_secs(idle);
    session.status.idle_since = Some(Time::from_millis(EPOCH_MS));
    let clock = ManualClock::default();
    let first = ttl.min(idle);
    for _ in 0..200 {
        let mut now = clock.now();
        if reads_wall {
            now.time = Time::from_millis(now.time.as_millis() + clock.wall_skew_ms());
        }
        let world = model.world().unwrap();
        let decided = plan(&world, now);
        for step in &decided.steps {
            model.apply(step);
        }
        let is_ended = model.session.as_ref().unwrap().status.end.is_some()
            || model.live_mut().is_none_or(|live| live.stop.is_some());
        let elapsed = now.mono.0 / 1000;
        if is_ended != (elapsed >= first) {
            return Err(format!("seed {seed}: after {elapsed} s of {first}: ended: {is_ended}"));
        }
        if is_ended {
            return Ok(());
        }
        let wait = match decided.requeue {
            crate::plan::Requeue::After(wait) => wait,
            crate::plan::Requeue::AwaitChange => {
                return Err(format!("seed {seed}: nobody looks again"));
            }
        };
        // Something else may set a pass off before the deadline does.
        clock.advance(wait.min(Duration::from_secs(1 + random.below(3600))));
        let jump = [HOUR_MS, -HOUR_MS, 8760 * HOUR_MS, -8760 * HOUR_MS, 0];
        clock.jump_wall(jump[usize::try_from(random.below(5)).unwrap()]);
    }
    Err(format!("seed {seed}: never ended"))
}

/// Test catalogue I1. No deadline is early, none is missed by more than a pass.
#[test]
fn jumps_of_the_wall_clock_neither_end_nor_keep_anything() {
    for seed in 0..2000 {
        live_through(seed, false).unwrap();
    }
    // Negative control: a daemon that goes by the wall clock.
    let wrong = (0..100).filter(|&seed| live_through(seed, true).is_err()).count();
    assert!(wrong > 50, "only {wrong} of 100 seeds notice");
}

/// How long a session lasts whose creation an earlier daemon recorded so far ahead of this one's clock,
/// with restarts of the daemon in between; seconds.
fn lasts(ahead: u64, ttl: u64, restarts: &[u64]) -> u64 {
    let mut model = open();
    let session = model.session.as_mut().unwrap();
    session.metadata.creation_timestamp =
        Some(Time::from_millis(EPOCH_MS).plus(Duration::from_secs(ahead)));
    session.spec.ttl = Some(Dur::from_secs(ttl));
    session.spec.idle_timeout = Dur::from_secs(0);
    for second in 0..=ahead + ttl {
        model.elapsed = Duration::from_secs(second);
        if restarts.contains(&second) {
            model.crash();
        }
        model.pass();
        if let Some(end) = &model.session.as_ref().unwrap().status.end {
            assert_eq!(end.reason, "TtlExpired");
            return second;
        }
    }
    panic!("nothing ended it");
}

/// Promise P11, over a start of the daemon.
#[test]
fn a_life_from_a_clock_that_was_ahead_lasts_no_longer_than_its_whole_ttl() {
    assert_eq!(lasts(86_400, 60, &[]), 60);
    // Written down: neither a further start nor the coming of the recorded time begins it anew.
    assert_eq!(lasts(86_400, 60, &[20, 40, 50]), 60);
    assert_eq!(lasts(30, 60, &[10]), 60);
    // What is not ahead counts from its creation, to the second.
    assert_eq!(lasts(0, 60, &[30]), 60);
    let mut model = open();
    model.session.as_mut().unwrap().spec.ttl = Some(Dur::from_secs(60));
    model.pass();
    assert_eq!(model.session.unwrap().status.ttl_counts_from, None);
}

#[test]
fn a_record_from_a_clock_that_was_ahead_stays_no_longer_than_it_is_to_be_kept() {
    let mut model = open();
    model.process = Process::Absent;
    let session = model.session.as_mut().unwrap();
    session.spec.ttl_after_finished = Dur::from_secs(60);
    session.spec.desired_state = DesiredState::Cancelled;
    session.status.process = None;
    model.converge(Duration::from_secs(10));
    let a_day_on = model.now().time.plus(Duration::from_secs(86_400));
    let session = model.session.as_mut().unwrap();
    assert!(session.status.finished_at.is_some());
    session.status.finished_at = Some(a_day_on);
    model.pass();
    let since = model.session.as_ref().unwrap().status.finished_at.unwrap();
    assert_eq!(since, model.now().time, "no time of a record is yet to come");
    model.elapsed += Duration::from_secs(60);
    model.converge(Duration::from_secs(1));
    assert!(model.session.is_none());
}
