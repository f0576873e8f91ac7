//! Runs a program of the operator's to its end: hooks, and the login shell that tells its PATH. It
//! runs as an agent does, under a shim: within its time limit, and then its whole tree is killed.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use super::launcher::RuntimeLauncher;
use crate::api::Dur;
use crate::runtime::LaunchSpec;
use crate::runtime::process::{AgentExit, ProcessEvent};

/// The most that a program may answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How much of its standard error stands in the log.
const STDERR_BYTES_MAX: usize = 2 * 1024;

impl RuntimeLauncher {
    /// Runs a program with `input` on its standard input; its standard output is the answer. `what`
    /// names it in the log, where its standard error is put; without it that is thrown away.
    ///
    /// # Errors
    ///
    /// It did not start, end well, or end in time, or it answered too much; in a sentence.
    pub(super) async fn run_program(
        &self,
        what: Option<&str>,
        spec: LaunchSpec,
        input: &str,
        limit: Dur,
    ) -> Result<Vec<u8>, String> {
        let mut process = self
            .runtime()
            .spawn(spec)
            .await
            .map_err(|error| format!("it did not start: {error}"))?;
        let (Some(mut stdin), Some(stdout), Some(stderr), Some(events)) =
            (process.take_stdin(), process.take_stdout(), process.take_stderr(), process.events())
        else {
            return Err("it has no pipes (a defect)".to_owned());
        };
        process.open_gate().map_err(|error| format!("it did not start: {error}"))?;
        let talk = async {
            let write = async move {
                // A program need not read what it is told.
                let _ = stdin.write_all(input.as_bytes()).await;
                drop(stdin);
                Ok(())
            };
            let answer = async move {
                let mut answer = Vec::new();
                // What cannot be read of it is not there.
                let _ = stdout.take(ANSWER_BYTES_MAX as u64 + 1).read_to_end(&mut answer).await;
                if answer.len() > ANSWER_BYTES_MAX {
                    // At once: nobody reads on, so it would write until its time is over.
                    return Err(format!("it answered more than {ANSWER_BYTES_MAX} bytes"));
                }
                Ok(answer)
            };
            let complaint = async move {
                let mut complaint = Vec::new();
                let mut err = stderr.take(STDERR_BYTES_MAX as u64);
                let _ = err.read_to_end(&mut complaint).await;
                // The rest is thrown away, so that it need not wait for room in the pipe.
                let _ = tokio::io::copy(&mut err.into_inner(), &mut tokio::io::sink()).await;
                Ok(complaint)
            };
            tokio::try_join!(write, answer, complaint, exit_of(events))
        };
        let ended = tokio::time::timeout(limit.get(), talk).await;
        // Whatever it left behind goes too; so it does if nobody waits for this any more.
        process.kill_tree();
        let ended = ended.map_err(|_| format!("it took longer than {limit}"))?;
        let ((), answer, complaint, exit) = ended?;
        if let Some(what) = what
            && !complaint.is_empty()
        {
            let said = String::from_utf8_lossy(&complaint);
            tracing::info!(command = what, ?said, "the standard error of a program");
        }
        match exit {
            AgentExit::Code(0) => Ok(answer),
            other => Err(format!("it ended with {other}")),
        }
    }
}

async fn exit_of(mut events: mpsc::Receiver<ProcessEvent>) -> Result<AgentExit, String> {
    loop {
        match events.recv().await {
            Some(ProcessEvent::Exited(exit)) => return Ok(exit),
            Some(ProcessEvent::ExecFailed { errno, .. }) => {
                return Err(std::io::Error::from_raw_os_error(errno).to_string());
            }
            Some(ProcessEvent::Started { .. }) => {}
            Some(ProcessEvent::ShimGone | ProcessEvent::TreeEmpty) | None => {
                return Err("its process is gone".to_owned());
            }
        }
    }
}
