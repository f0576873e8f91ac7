//! The demo agent over streams in memory, in paused time.

use tokio::io::{AsyncWriteExt, DuplexStream};

use super::*;
use crate::clock::{Clock, SystemClock};

/// An agent that is served in a task of its own.
struct Peer {
    input: Option<DuplexStream>,
    output: mpsc::Receiver<Value>,
    served: JoinSet<io::Result<()>>,
}

/// Hands each written line on.
struct Lines {
    part: Vec<u8>,
    sender: mpsc::Sender<Value>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let message = serde_json::from_slice(&std::mem::take(&mut self.part))?;
        self.sender.try_send(message).map_err(io::Error::other)
    }
}

impl Peer {
    fn start() -> Self {
        let (input, agent) = tokio::io::duplex(64 * 1024);
        let (sender, output) = mpsc::channel(1_000);
        let mut served = JoinSet::new();
        let mut lines = Lines { part: Vec::new(), sender };
        served.spawn(async move { serve(agent, &mut lines).await });
        Self { input: Some(input), output, served }
    }

    async fn line(&mut self, line: &str) {
        self.input.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, id: u64, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.line(&message.to_string()).await;
    }

    async fn prompt(&mut self, id: u64, session: &str, text: &str) {
        let params = json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
        self.ask(id, "session/prompt", params).await;
    }

    async fn next(&mut self) -> Value {
        self.output.recv().await.unwrap()
    }

    /// The text that comes before the answer to a request, and the answer.
    async fn until_answer(&mut self, id: u64) -> (String, Value) {
        let mut text = String::new();
        loop {
            let message = self.next().await;
            if message["id"] == id {
                return (text, message);
            }
            text.push_str(message["params"]["update"]["content"]["text"].as_str().unwrap_or(""));
        }
    }

    async fn end(mut self) {
        self.input = None;
        self.served.join_next().await.unwrap().unwrap().unwrap();
    }
}

/// One that has the session `demo-1`.
async fn opened() -> Peer {
    let mut peer = Peer::start();
    peer.ask(1, "initialize", json!({"protocolVersion": 1})).await;
    let initialized = peer.next().await;
    assert_eq!(initialized["result"]["protocolVersion"], 1);
    assert_eq!(initialized["result"]["agentInfo"]["version"], env!("CARGO_PKG_VERSION"));
    peer.ask(2, "session/new", json!({"cwd": "/", "mcpServers": []})).await;
    assert_eq!(peer.next().await["result"]["sessionId"], "demo-1");
    peer
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_repeated_in_pieces_behind_one_tool_call() {
    let mut peer = opened().await;
    peer.prompt(3, "demo-1", "one two three").await;
    let mut kinds = Vec::new();
    let mut text = String::new();
    let answer = loop {
        let message = peer.next().await;
        let update = &message["params"]["update"];
        if message["id"] == 3 {
            break message;
        }
        kinds.push(update["sessionUpdate"].as_str().unwrap().to_owned());
        text.push_str(update["content"]["text"].as_str().unwrap_or(""));
    };
    assert_eq!(kinds[..2], ["tool_call", "tool_call_update"]);
    assert!(kinds.len() > 4 && kinds[2..].iter().all(|kind| kind == "agent_message_chunk"));
    assert_eq!(text, "You said: one two three");
    assert_eq!(answer["result"]["stopReason"], "end_turn");

    peer.prompt(4, "demo-1", "[[recall]]").await;
    assert_eq!(peer.until_answer(4).await.0, "Before that you said: one two three");
    peer.ask(5, "session/new", json!({"cwd": "/"})).await;
    assert_eq!(peer.next().await["result"]["sessionId"], "demo-2");
    peer.prompt(6, "demo-2", "[[recall]]").await;
    assert_eq!(peer.until_answer(6).await.0, "You said nothing before that.");
    peer.end().await;
}

#[tokio::test(start_paused = true)]
async fn words_make_it_slow_fail_or_hang_and_a_cancel_is_confirmed() {
    let mut peer = opened().await;
    let clock = SystemClock::new();
    let begun = clock.now().mono;
    peer.prompt(3, "demo-1", "[[slow:30]] a b").await;
    peer.until_answer(3).await;
    assert_eq!(clock.now().mono.since(begun).as_secs(), 30);

    peer.prompt(4, "demo-1", "[[fail]]").await;
    assert_eq!(peer.until_answer(4).await.1["error"]["code"], INTERNAL_ERROR);

    peer.prompt(5, "demo-1", "[[hang]]").await;
    peer.prompt(6, "demo-1", "too early").await;
    assert_eq!(peer.until_answer(6).await.1["error"]["code"], INVALID_REQUEST);
    peer.ask(7, "session/set_config_option", json!({"sessionId": "demo-1"})).await;
    assert_eq!(peer.until_answer(7).await.1["error"]["code"], INVALID_PARAMS, "it still listens");
    let cancel = json!({"method": "session/cancel", "params": {"sessionId": "demo-1"}});
    peer.line(&cancel.to_string()).await;
    assert_eq!(peer.until_answer(5).await.1["result"]["stopReason"], "cancelled");
    peer.line(&cancel.to_string()).await;
    peer.prompt(8, "demo-1", "on").await;
    assert_eq!(peer.until_answer(8).await.1["result"]["stopReason"], "end_turn");

    // The end of the input ends it in the middle of a turn.
    peer.prompt(9, "demo-1", "[[hang]]").await;
    peer.end().await;
}

#[tokio::test(start_paused = true)]
async fn options_are_set_to_what_they_offer_and_tell_all_that_stands() {
    let mut peer = opened().await;
    for (id, option, value, is_taken) in [
        (3, "model", "large", true),
        (4, "thought_level", "high", true),
        (5, "model", "huge", false),
        (6, "colour", "large", false),
    ] {
        let params = json!({"sessionId": "demo-1", "configId": option, "value": value});
        peer.ask(id, "session/set_config_option", params).await;
        let answer = peer.next().await;
        assert_eq!(answer.get("result").is_some(), is_taken, "{answer}");
        if is_taken {
            let options = answer["result"]["configOptions"].as_array().unwrap();
            assert_eq!(options.len(), 2);
            let set = options.iter().find(|found| found["id"] == option).unwrap();
            assert_eq!((&set["currentValue"], &set["category"]), (&json!(value), &json!(option)));
        }
    }
    peer.prompt(7, "demo-1", "x").await;
    peer.next().await;
    let seen = &peer.next().await["params"]["update"]["rawOutput"];
    assert_eq!(*seen, json!({"letters": 1, "model": "large", "thoughtLevel": "high"}));
}

#[tokio::test(start_paused = true)]
async fn what_it_does_not_know_is_refused_and_stray_lines_end_nothing() {
    let mut peer = opened().await;
    peer.line("no json").await;
    assert_eq!(peer.next().await["error"]["code"], PARSE_ERROR);
    for line in [r#"{"method":"$/unheard-of"}"#, r#"{"id":9,"result":{}}"#, "[]", "7"] {
        peer.line(line).await;
    }
    peer.ask(3, "session/load", json!({"sessionId": "demo-1"})).await;
    assert_eq!(peer.next().await["error"]["code"], METHOD_NOT_FOUND);
    peer.prompt(4, "demo-7", "x").await;
    assert_eq!(peer.next().await["error"]["code"], INVALID_PARAMS);
    peer.end().await;
}

#[test]
fn an_answer_has_a_few_pieces_that_are_the_whole() {
    for text in ["", "one", "a b c", &"word ".repeat(1_000)] {
        let pieces = pieces(text);
        assert!(pieces.len() <= PIECES_MAX, "{}", pieces.len());
        assert_eq!(pieces.concat(), text);
    }
    for wrong in ["[[slow:]]", "[[slow:x]]", "[[slow:-1]]", "[[slow:1e9]]", "[[slow:NaN]]"] {
        assert_eq!(Script::of(wrong, None).spread, Duration::ZERO, "{wrong}");
    }
}
