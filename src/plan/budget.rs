//! What a turn may use: steps, time, tokens and cost.
//!
//! A turn that uses more is cancelled by `Budget` and ends `Expired`; its session goes on. Its
//! limits are fixed when the prompt is given: a change of the session counts from the next turn on.

use std::time::Duration;

use crate::api::Turn;
use crate::api::session::RunBudget;
use crate::clock::Now;

use super::deadlines::Due;
use super::stop::is_prompt_open;
use super::world::{Live, Prompt};

/// The limits of a turn: its own, and the session's where it has none.
#[must_use]
pub fn of_turn(session: &RunBudget, turn: Option<&RunBudget>) -> RunBudget {
    let Some(turn) = turn else { return session.clone() };
    RunBudget {
        max_steps: turn.max_steps.or(session.max_steps),
        timeout: turn.timeout.or(session.timeout),
        max_tokens: turn.max_tokens.or(session.max_tokens),
        max_cost: turn.max_cost.or(session.max_cost),
    }
}

/// What a turn has used more of than it may, in a sentence; of its time nothing is said.
#[must_use]
pub fn excess(prompt: &Prompt) -> Option<String> {
    let (budget, spent) = (&prompt.budget, &prompt.spent);
    if let Some(max) = budget.max_steps.filter(|&max| prompt.steps > max) {
        return Some(format!("it began step {}; runBudget.maxSteps is {max}", prompt.steps));
    }
    if let Some(max) = budget.max_tokens.filter(|&max| spent.tokens > max) {
        return Some(format!("it used {} tokens; runBudget.maxTokens is {max}", spent.tokens));
    }
    let max = budget.max_cost.filter(|&max| spent.cost > max)?;
    Some(format!("it cost {:.6}; runBudget.maxCost is {max}", spent.cost))
}

/// How the budget of the turn that the agent has stands, and why it is used up if it is. `None`: it
/// has no limit, or is being cancelled already.
pub(super) fn due(live: &Live, turns: &[Turn], now: Now) -> Option<(Due, String)> {
    let prompt = live.prompt.as_ref().filter(|_| is_prompt_open(live))?;
    let turn = turns.iter().find(|turn| turn.metadata.uid == prompt.turn)?;
    if turn.status.phase.is_final() || turn.status.cancel.is_some() {
        return None;
    }
    let amount = prompt.over_budget_since.map(|since| {
        let why = excess(prompt).unwrap_or_else(|| "its budget is used up".to_owned());
        (Due::Over(now.mono.since(since)), why)
    });
    let time = prompt.budget.timeout.filter(|timeout| !timeout.is_zero()).and_then(|timeout| {
        let deadline = turn.status.dispatched_at?.plus(timeout.get());
        Some((Due::at(deadline, now.time), format!("it ran for its runBudget.timeout, {timeout}")))
    });
    match (amount, time) {
        (Some(amount), Some(time)) => {
            Some(if over_for(time.0) > over_for(amount.0) { time } else { amount })
        }
        (found, None) | (None, found) => found,
    }
}

const fn over_for(due: Due) -> Option<Duration> {
    match due {
        Due::Over(ago) => Some(ago),
        Due::In(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Dur;

    #[test]
    fn a_turns_own_limits_count_and_the_sessions_where_it_has_none() {
        let session = RunBudget {
            max_steps: Some(3),
            timeout: Some(Dur::from_secs(9)),
            ..RunBudget::default()
        };
        let turn = RunBudget { max_steps: Some(5), max_tokens: Some(7), ..RunBudget::default() };
        let both = of_turn(&session, Some(&turn));
        assert_eq!((both.max_steps, both.timeout), (Some(5), Some(Dur::from_secs(9))));
        assert_eq!((both.max_tokens, both.max_cost), (Some(7), None));
        assert_eq!(of_turn(&session, None), session);
    }

    #[test]
    fn what_reaches_a_limit_is_within_it() {
        let budget = RunBudget {
            max_steps: Some(2),
            max_tokens: Some(10),
            max_cost: Some(0.5),
            ..RunBudget::default()
        };
        let mut prompt = Prompt::new("t".into(), budget);
        (prompt.steps, prompt.spent.tokens, prompt.spent.cost) = (2, 10, 0.5);
        assert_eq!(excess(&prompt), None);
        for (steps, tokens, cost, word) in
            [(3, 10, 0.5, "maxSteps"), (2, 11, 0.5, "maxTokens"), (2, 10, 0.6, "maxCost")]
        {
            (prompt.steps, prompt.spent.tokens, prompt.spent.cost) = (steps, tokens, cost);
            assert!(excess(&prompt).unwrap().contains(word));
        }
    }
}
