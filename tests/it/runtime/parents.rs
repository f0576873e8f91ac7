//! Launches from threads that end (test catalogue D7): the kernel sends the parent death signal of
//! prctl(2) when the thread ends that started the process, and the threads of a runtime come and go.
//! Nothing of ours asks for that signal, so nothing dies with its thread.
//!
//! 24 launches and 3 s; at tier 2 the catalogue's 200 launches and 30 s.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spawnlet::runtime::{Launcher, Process, ProcessEvent};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{bash, launcher, with_token};
use crate::chaos::tier;
use crate::harness::fakeagent;

/// How long threads are kept that have nothing to do.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// How many launches, and how long they are watched.
fn extent() -> (usize, Duration) {
    if tier() == 2 { (200, Duration::from_secs(30)) } else { (24, Duration::from_secs(3)) }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .thread_keep_alive(KEEP_ALIVE)
        .enable_all()
        .build()
        .unwrap()
}

/// Calls `start` from each place of a runtime that code may run in, so often in all, with work that
/// takes the workers' threads away from them all the time.
async fn from_everywhere<T: Send + 'static>(
    count: usize,
    start: impl Fn() -> T + Clone + Send + 'static,
) -> Vec<T> {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let start = start.clone();
        match number % 3 {
            // A worker that gives its work to another thread, and ends as an idle one.
            0 => tasks.spawn(async move { tokio::task::block_in_place(start) }),
            1 => tasks.spawn_blocking(start),
            _ => tasks.spawn(async move {
                tokio::task::block_in_place(std::thread::yield_now);
                tokio::task::block_in_place(start)
            }),
        };
    }
    tasks.join_all().await
}

type Launched = (Process, mpsc::Receiver<ProcessEvent>);

async fn launched(launcher: &Launcher, script: &str) -> Launched {
    let mut process = launcher.spawn(bash(launcher, script)).await.unwrap();
    let mut events = process.events().unwrap();
    process.open_gate().unwrap();
    assert!(matches!(super::next(&mut events).await, ProcessEvent::Started { .. }));
    (process, events)
}

/// Test catalogue D7.
#[test]
fn no_agent_dies_with_the_thread_that_launched_it() {
    let (count, time) = extent();
    let runtime = runtime();
    runtime.block_on(async move {
        let launcher = launcher();
        let token = super::token();
        let script = format!("exec sleep {token}");
        let all = from_everywhere(count, {
            let (launcher, script) = (launcher.clone(), script.clone());
            move || Handle::current().block_on(launched(&launcher, &script))
        })
        .await;
        let mut watched = JoinSet::new();
        let mut held = Vec::new();
        for (process, mut events) in all {
            held.push(process);
            watched.spawn(async move { events.recv().await });
        }
        // Whatever dies says so at once.
        let died = tokio::time::timeout(time, watched.join_next()).await;
        assert!(died.is_err(), "one died: {died:?}");
        assert_eq!(with_token(&token).len(), count);
        drop(held);
        for event in watched.join_all().await {
            assert!(event.is_some());
        }
        tokio::time::timeout(super::DEADLINE, launcher.drained()).await.unwrap();
        assert_eq!(with_token(&token), super::NONE);
    });
}

/// The negative control: a child that does ask for the signal is killed while its daemon lives.
#[test]
fn a_child_that_asks_for_its_parents_death_dies_with_a_thread() {
    let runtime = runtime();
    runtime.block_on(async {
        let program = fakeagent();
        let start = move || -> Child {
            let mut command = Command::new(&program);
            command.arg("--be=bound").stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            // It closes its output when it has asked.
            std::io::copy(child.stdout.as_mut().unwrap(), &mut std::io::sink()).unwrap();
            child
        };
        let mut children = from_everywhere(12, start).await;
        let held: Vec<_> = children.iter().map(|child| super::hold(child.id()).unwrap()).collect();
        // On this thread, which is none of the runtime's: theirs are to have nothing to do.
        let mut polled: Vec<_> = held.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let limit = Timespec { tv_sec: super::DEADLINE.as_secs().try_into().unwrap(), tv_nsec: 0 };
        let died = poll(&mut polled, Some(&limit)).unwrap();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(died > 0, "none of {} died", children.len());
    });
}
