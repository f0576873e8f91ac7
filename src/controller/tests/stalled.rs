//! Passes that hang or panic: their session says so, and all others go on.

use std::time::Duration;

use serde_json::json;

use super::bench::Bench;
use super::gate::Trap;
use crate::api::condition::ConditionStatus;
use crate::api::{Kind, Namespace, Session};
use crate::store::keys;

fn is_stalled(session: &Session) -> bool {
    session.status.conditions.is_true("ReconcileStalled")
}

/// Known failures H07.
#[tokio::test(start_paused = true)]
async fn a_pass_that_hangs_or_panics_is_shown_and_the_others_go_on() {
    for (trap, says) in [(Trap::Panics, "panicked"), (Trap::Hangs, "longer than 5s")] {
        let bench = Bench::new().await;
        bench.agent("a", "answer").await;
        bench.agent("trapped", "answer").await;
        let agent = keys::record(Kind::Agent, &Namespace::default(), &"trapped".into());
        bench.gate.trap(Some((agent, trap)));
        bench.session("bad", "trapped", json!({"prompt": "one"})).await;
        bench.session("good", "a", json!({"prompt": "two"})).await;
        bench.until_final("good-1").await;
        let bad = bench.until_session("bad", |bad| bad.is_some_and(is_stalled)).await.unwrap();
        let condition = bad.status.conditions.get("ReconcileStalled").unwrap();
        assert_eq!(condition.status, ConditionStatus::True);
        assert!(condition.message.contains(says), "{condition:?}");
        assert!(!is_stalled(&bench.find_session("good").await.unwrap()));
        // It is tried again with pauses, and the first pass that comes through takes it off.
        bench.pass_time(Duration::from_secs(30)).await;
        assert!(is_stalled(&bench.find_session("bad").await.unwrap()));
        bench.gate.trap(None);
        bench.until_final("bad-1").await;
        assert!(!is_stalled(&bench.find_session("bad").await.unwrap()));
        bench.check_quiet().await;
    }
}
