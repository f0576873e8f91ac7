//! Turns from prompt to response, and their cancels.

use serde_json::json;

use super::bench::Bench;
use crate::api::session::SessionPhase;
use crate::api::turn::TurnPhase;
use crate::store::Stream;

#[tokio::test(start_paused = true)]
async fn a_turn_runs_to_its_end_with_response_and_transcript() {
    let bench = Bench::new().await;
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({})).await;
    let uid = bench.turn("t", "s", "hello").await;
    let turn = bench.until_final("t").await;
    assert_eq!(turn.status.phase, TurnPhase::Completed);
    assert_eq!(turn.status.stop_reason.as_deref(), Some("end_turn"));
    assert_eq!(bench.blob(&uid, Stream::Response).await, "echo: hello");
    assert_eq!(turn.status.response_bytes, 11);
    let transcript = bench.blob(&uid, Stream::Transcript).await;
    assert_eq!(transcript.lines().count(), 1, "{transcript}");
    let session = bench.find_session("s").await.unwrap();
    assert_eq!(session.status.phase, SessionPhase::Idle);
    assert_eq!(session.status.latest_turn.as_ref().unwrap().as_str(), "t");
    bench.check_quiet().await;
}
