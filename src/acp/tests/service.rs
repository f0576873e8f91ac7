//! The service over pipes, in paused time.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::bench::{blocks, chunk, options, update_line};
use crate::acp::codec::{FRAME_BYTES_MAX, LineReader};
use crate::acp::connection::{Handle, Open, Refused, Scope, connect};
use crate::acp::event::{Event, Fault};
use crate::api::Uid;
use crate::clock::SystemClock;

struct Peer {
    handle: Handle,
    events: mpsc::Receiver<Event>,
    stdin: LineReader<DuplexStream>,
    stdout: DuplexStream,
    tasks: JoinSet<()>,
}

impl Peer {
    fn new(queue: usize) -> Self {
        let (stdin, agent_in) = tokio::io::duplex(64 * 1024);
        let (agent_out, stdout) = tokio::io::duplex(64 * 1024);
        let (sender, events) = mpsc::channel(queue);
        let mut options = options();
        options.clock = Arc::new(SystemClock::new());
        let (handle, service) = connect(stdin, stdout, options, sender);
        let mut tasks = JoinSet::new();
        tasks.spawn(service.run());
        let stdin = LineReader::new(agent_in, FRAME_BYTES_MAX);
        Self { handle, events, stdin, stdout: agent_out, tasks }
    }

    async fn open(queue: usize) -> Self {
        let mut peer = Self::new(queue);
        peer.handle.open(Open::New(Scope::default())).unwrap();
        peer.answer(json!({"sessionId": "s"})).await;
        assert!(matches!(peer.next().await, Event::Opened(Ok(_))));
        peer
    }

    async fn next(&mut self) -> Event {
        self.events.recv().await.unwrap()
    }

    async fn received(&mut self) -> Option<Value> {
        let line = self.stdin.next_line().await.unwrap()?;
        Some(serde_json::from_slice(line).unwrap())
    }

    async fn say(&mut self, line: &str) {
        self.stdout.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// Answers the next request that comes.
    async fn answer(&mut self, result: Value) {
        let id = self.received().await.unwrap()["id"].clone();
        self.say(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_prompt_comes_after_the_updates_before_it() {
    let mut peer = Peer::open(4).await;
    peer.handle.prompt(Uid::from("t"), blocks("hi")).unwrap();
    let id = peer.received().await.unwrap()["id"].clone();
    let mut output = String::new();
    for n in 0..100 {
        output += &update_line("s", &chunk(&n.to_string()));
        output.push('\n');
    }
    output +=
        &json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": "end_turn"}}).to_string();
    peer.say(&output).await;
    assert!(matches!(peer.next().await, Event::PromptWritten { .. }));
    for n in 0..100 {
        let Event::Update(update) = peer.next().await else { panic!("update {n}") };
        assert_eq!(update.text, Some(n.to_string()));
    }
    assert!(matches!(peer.next().await, Event::PromptEnded { outcome: Ok(_), .. }));
}

#[tokio::test(start_paused = true)]
async fn a_slow_owner_holds_the_agent_back_and_loses_nothing() {
    let Peer { handle, mut events, stdin, mut stdout, mut tasks } = Peer::open(2).await;
    let (progress, mut written) = tokio::sync::watch::channel(0_usize);
    tasks.spawn(async move {
        for n in 0..20_000 {
            let line = update_line("s", &chunk(&n.to_string())) + "\n";
            stdout.write_all(line.as_bytes()).await.unwrap();
            progress.send(n).unwrap();
        }
    });
    // With paused time this passes only once nobody can go on.
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert!(*written.borrow_and_update() < 3000, "the pipes hold some, the service nothing");
    for n in 0..20_000 {
        let Some(Event::Update(update)) = events.recv().await else { panic!("update {n}") };
        assert_eq!(update.text, Some(n.to_string()));
    }
    assert!(matches!(events.recv().await, Some(Event::Eof)));
    assert!(events.recv().await.is_none(), "the service is done");
    drop((handle, stdin));
    while tasks.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn calls_go_out_while_the_owner_takes_no_events() {
    let mut peer = Peer::open(1).await;
    for n in 0..10 {
        peer.say(&update_line("s", &chunk(&n.to_string()))).await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    peer.handle.cancel().unwrap();
    assert_eq!(peer.received().await.unwrap()["method"], "session/cancel");
}

#[tokio::test(start_paused = true)]
async fn a_line_over_the_limit_is_a_fault_and_the_rest_is_drained() {
    let mut peer = Peer::open(8).await;
    let mut stdout = peer.stdout;
    peer.tasks.spawn(async move {
        let piece = vec![b'x'; 1024 * 1024];
        for _ in 0..40 {
            stdout.write_all(&piece).await.unwrap();
        }
    });
    let fault = peer.events.recv().await;
    assert!(matches!(fault, Some(Event::Fault(Fault::FrameTooLarge { .. }))));
    assert!(matches!(peer.events.recv().await, Some(Event::Eof)));
    while peer.tasks.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_read_fills_the_bound_and_no_more() {
    let peer = Peer::open(8).await;
    let text = "x".repeat(700 * 1024);
    let mut taken = 0;
    let refused = loop {
        match peer.handle.prompt(Uid::from("t"), blocks(&text)) {
            Ok(()) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((taken, refused), (2, Refused::Full));
    assert_eq!(peer.handle.cancel(), Ok(()), "a cancel needs no room");
}

#[tokio::test(start_paused = true)]
async fn room_comes_back_as_lines_are_written() {
    let mut peer = Peer::open(64).await;
    let text = "x".repeat(700 * 1024);
    for n in 0..20 {
        peer.handle.prompt(Uid::from(&*n.to_string()), blocks(&text)).unwrap();
        peer.answer(json!({"stopReason": "end_turn"})).await;
        assert!(matches!(peer.next().await, Event::PromptWritten { .. }));
        assert!(matches!(peer.next().await, Event::PromptEnded { outcome: Ok(_), .. }));
    }
    // Prompts that are not sent give their room back too.
    peer.handle.prompt(Uid::from("a"), blocks(&text)).unwrap();
    peer.received().await.unwrap();
    for _ in 0..20 {
        peer.handle.prompt(Uid::from("b"), blocks(&text)).unwrap();
        loop {
            if matches!(peer.next().await, Event::PromptEnded { outcome: Err(_), .. }) {
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn closing_standard_input_lets_what_waits_out_first() {
    let mut peer = Peer::open(8).await;
    peer.handle.cancel().unwrap();
    peer.handle.close_session().unwrap();
    peer.handle.close_stdin();
    assert_eq!(peer.handle.cancel(), Err(Refused::Closed));
    assert_eq!(peer.received().await.unwrap()["method"], "session/cancel");
    assert_eq!(peer.received().await.unwrap()["method"], "session/close");
    assert!(peer.received().await.is_none());
    assert!(matches!(peer.next().await, Event::CancelWritten { turn: None }));
    drop(peer.stdout);
    assert!(matches!(peer.events.recv().await, Some(Event::Eof)));
    assert_eq!(peer.tasks.join_next().await.map(|end| end.is_ok()), Some(true));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_closes_its_standard_input_is_a_fault() {
    let mut peer = Peer::open(8).await;
    drop(peer.stdin);
    peer.handle.prompt(Uid::from("t"), blocks("hi")).unwrap();
    let fault = peer.events.recv().await;
    assert!(matches!(fault, Some(Event::Fault(Fault::Write { .. }))), "{fault:?}");
    peer.stdout.write_all(update_line("s", &chunk("x")).as_bytes()).await.unwrap();
    drop(peer.stdout);
    assert!(matches!(peer.events.recv().await, Some(Event::Update(_))), "the last line counts");
    assert!(matches!(peer.events.recv().await, Some(Event::Eof)));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_asks_without_reading_is_not_read_any_more() {
    let mut peer = Peer::open(1024).await;
    let mut stdout = peer.stdout;
    let (progress, asked) = tokio::sync::watch::channel(0_usize);
    let pad = "x".repeat(900);
    peer.tasks.spawn(async move {
        for n in 0..5000 {
            let line = format!(r#"{{"jsonrpc":"2.0","id":"{n}{pad}","method":"x"}}"#) + "\n";
            if stdout.write_all(line.as_bytes()).await.is_err() {
                return;
            }
            progress.send_replace(n);
        }
    });
    let mut seen = 0;
    while let Ok(event) =
        tokio::time::timeout(std::time::Duration::from_secs(60), peer.events.recv()).await
    {
        assert!(matches!(event, Some(Event::Traffic { refused: Some(-32601), .. })));
        seen += 1;
    }
    assert!(seen < 200, "{seen} were answered, 64 of them not read");
    assert!(*asked.borrow() < 400);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_written_after_a_moment_and_again_after_two_seconds() {
    let mut peer = Peer::open(64).await;
    peer.handle.prompt(Uid::from("t"), blocks("hi")).unwrap();
    peer.handle.cancel().unwrap();
    assert_eq!(peer.received().await.unwrap()["method"], "session/prompt");
    let begun = SystemClock::new();
    let passed = || crate::clock::Clock::now(&begun).mono.0;
    assert_eq!(peer.received().await.unwrap()["method"], "session/cancel");
    assert!((248..=252).contains(&passed()), "{}", passed());
    assert_eq!(peer.received().await.unwrap()["method"], "session/cancel");
    assert!((2248..=2254).contains(&passed()), "{}", passed());
    let quiet = tokio::time::timeout(std::time::Duration::from_secs(3600), peer.received());
    assert!(quiet.await.is_err(), "never a third time");
}
