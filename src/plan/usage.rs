//! What agents report of tokens and cost: how reports become sums of a turn and of a session.
//!
//! Agents report in two ways. `usage_update` tells how many tokens the context holds (a gauge, it
//! falls when the context is compacted) and what the session has cost (a counter, which some agents
//! begin anew with each process). The answer to a prompt tells the turn's own tokens, but only when
//! the turn is over. So while a turn runs, its tokens are what the context grew by, which is less
//! than what the model was paid for; once it is over, they are what the agent says.
//!
//! Invariants: sums only grow; a report that cannot be right (negative, not finite, in another
//! currency) changes nothing. Absent: prices. What an agent does not report is not guessed.

use serde_json::{Map, Value, json};

/// What a session may say that it has cost: more than anybody has, in any currency. A report above it
/// makes no sense, and sums with it would have hundreds of digits.
const COST_MAX: f64 = 1e12;

/// The counts of a prompt's answer that are summed up.
pub(super) const TOKEN_COUNTS: &[&str] = &[
    "totalTokens",
    "inputTokens",
    "outputTokens",
    "thoughtTokens",
    "cachedReadTokens",
    "cachedWriteTokens",
];

/// One `usage_update`; what was not in it, or made no sense, is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Tokens in the context.
    pub used: Option<u64>,
    /// Tokens that the context may hold.
    pub size: Option<u64>,
    /// What the session has cost, in `currency`.
    pub cost: Option<f64>,
    /// An ISO 4217 code, usually.
    pub currency: Option<String>,
}

/// What a turn has used, by the updates that came while it ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    /// Tokens that the context grew by.
    pub tokens: u64,
    /// In the session's currency.
    pub cost: f64,
}

/// The sums of a session, from the record at its process's start and the reports since.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meter {
    used: Option<u64>,
    size: Option<u64>,
    cost: f64,
    currency: Option<String>,
    /// What this process reported last: the next report counts from there.
    last_used: Option<u64>,
    last_cost: Option<f64>,
}

impl Meter {
    /// Goes on from what a session's record says.
    #[must_use]
    pub fn of_record(usage: Option<&Value>) -> Self {
        let Some(usage) = usage else { return Self::default() };
        let number = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
        Self {
            used: number("/context/used"),
            size: number("/context/size"),
            cost: usage.pointer("/cost/amount").and_then(Value::as_f64).unwrap_or(0.0),
            currency: usage.pointer("/cost/currency").and_then(Value::as_str).map(str::to_owned),
            ..Self::default()
        }
    }

    /// Takes a report in; `is_new`: the agent has nothing of the session from before this process.
    /// Tells what was used since the last one.
    pub fn take(&mut self, report: Report, is_new: bool) -> Spent {
        let mut spent = Spent::default();
        if let Some(used) = report.used {
            let before = match self.last_used {
                Some(last) => last,
                None if is_new => 0,
                // A conversation from before: from where it stood, if that is known.
                None => self.used.unwrap_or(used),
            };
            spent.tokens = used.saturating_sub(before);
            self.used = Some(used);
            self.last_used = Some(used);
        }
        self.size = report.size.or(self.size);
        if let Some(cost) = report.cost.filter(|cost| (0.0..=COST_MAX).contains(cost))
            && (self.currency.is_none() || self.currency == report.currency)
        {
            let before = match self.last_cost {
                Some(last) if cost >= last => last,
                // Begun anew in the middle, as with a new conversation.
                Some(_) => 0.0,
                None if is_new => 0.0,
                // Either it goes on from what was recorded, or it began anew with the process.
                None if cost >= self.cost => self.cost,
                None => 0.0,
            };
            spent.cost = cost - before;
            self.cost += spent.cost;
            self.last_cost = Some(cost);
            self.currency = self.currency.take().or(report.currency);
        }
        spent
    }

    /// Writes the sums into a session's record.
    pub(super) fn write_to(&self, usage: &mut Option<Value>) {
        if let Some(used) = self.used {
            set(usage, "context", json!({"used": used, "size": self.size}));
        }
        if self.last_cost.is_some() {
            set(usage, "cost", self.cost_of(self.cost));
        }
    }

    fn cost_of(&self, amount: f64) -> Value {
        json!({"amount": rounded(amount), "currency": self.currency})
    }

    /// A turn's usage for its record: what the agent answered, and what its updates told.
    pub(super) fn of_turn(&self, answered: Option<&Value>, spent: &Spent) -> Option<Value> {
        let mut usage = answered.cloned();
        if spent.tokens > 0 {
            set(&mut usage, "contextGrowth", json!(spent.tokens));
        }
        if spent.cost > 0.0 {
            set(&mut usage, "cost", self.cost_of(spent.cost));
        }
        usage
    }
}

/// Adds the counts that a turn's agent answered with to its session's.
pub(super) fn add_turn(usage: &mut Option<Value>, turn: Option<&Value>) {
    let Some(turn) = turn else { return };
    for name in TOKEN_COUNTS {
        let Some(count) = turn.get(*name).and_then(Value::as_u64) else { continue };
        let before = usage.as_ref().and_then(|sums| sums.get(*name)?.as_u64()).unwrap_or(0);
        set(usage, name, json!(before.saturating_add(count)));
    }
}

/// Sets one field of an object, made one if it is none.
fn set(value: &mut Option<Value>, name: &str, field: Value) {
    let mut map = if let Some(Value::Object(map)) = value.take() { map } else { Map::new() };
    map.insert(name.to_owned(), field);
    *value = Some(Value::Object(map));
}

/// Sums of prices without the noise of binary fractions: to a millionth.
pub(super) fn rounded(amount: f64) -> f64 {
    (amount * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(used: u64) -> Report {
        Report { used: Some(used), size: Some(1000), ..Report::default() }
    }

    fn cost(amount: f64, currency: &str) -> Report {
        Report { cost: Some(amount), currency: Some(currency.into()), ..Report::default() }
    }

    #[test]
    fn a_context_that_shrinks_takes_nothing_back() {
        let mut meter = Meter::default();
        let grown: Vec<u64> =
            [100, 300, 50, 80].map(|used| meter.take(tokens(used), true).tokens).into();
        assert_eq!(grown, [100, 200, 0, 30]);
    }

    #[test]
    fn a_conversation_from_before_counts_from_where_it_stands() {
        let mut unknown = Meter::default();
        assert_eq!(unknown.take(tokens(700), false).tokens, 0);
        assert_eq!(unknown.take(tokens(750), false).tokens, 50);
        let mut known = Meter::of_record(Some(&json!({"context": {"used": 700, "size": 1000}})));
        assert_eq!(known.take(tokens(710), false).tokens, 10);
    }

    #[test]
    fn a_cost_that_makes_no_sense_is_left_out() {
        let mut meter = Meter::default();
        for amount in [f64::NAN, f64::INFINITY, -1.0, 1e308, 1.0] {
            assert_eq!(
                meter.take(cost(amount, "USD"), true).cost,
                f64::from(u8::from(amount == 1.0))
            );
        }
    }

    #[test]
    fn a_cost_goes_on_or_begins_anew_and_its_sum_only_grows() {
        let record = json!({"cost": {"amount": 1.5, "currency": "USD"}});
        // Goes on over the process's end; begins anew with it; begins anew in the middle.
        for (reports, sum) in
            [(vec![1.75, 2.0], 2.0), (vec![0.25, 0.5], 2.0), (vec![2.0, 0.5], 2.5)]
        {
            let mut meter = Meter::of_record(Some(&record));
            for amount in &reports {
                meter.take(cost(*amount, "USD"), false);
            }
            let mut usage = Some(record.clone());
            meter.write_to(&mut usage);
            assert_eq!(usage.unwrap()["cost"]["amount"], json!(sum), "{reports:?}");
        }
    }

    #[test]
    fn reports_that_cannot_be_right_change_nothing() {
        let mut meter = Meter::default();
        meter.take(cost(1.0, "USD"), true);
        for amount in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(meter.take(cost(amount, "USD"), true).cost, 0.0);
        }
        assert_eq!(meter.take(cost(5.0, "EUR"), true).cost, 0.0, "sums are of one currency");
        assert_eq!(meter.take(cost(1.5, "USD"), true).cost, 0.5);
    }

    #[test]
    fn a_sessions_counts_are_the_sums_of_its_turns() {
        let mut usage = None;
        for turn in [json!({"totalTokens": 5, "inputTokens": 3, "mood": "good"}), json!(null)] {
            add_turn(&mut usage, Some(&turn));
        }
        add_turn(&mut usage, Some(&json!({"totalTokens": 7})));
        assert_eq!(usage, Some(json!({"totalTokens": 12, "inputTokens": 3})));
    }
}
