//! Runs a program of the operator's to its end: hooks, and the login shell that tells its PATH. It
//! runs as an agent does, under a shim: within its time limit, and then its whole tree is killed.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

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
    /// names it in the log.
    ///
    /// # Errors
    ///
    /// It did not start, end well, or end in time, or it answered too much; in a sentence.
    pub(super) async fn run_program(
        &self,
        what: &str,
        spec: LaunchSpec,
        input: &str,
        limit: Dur,
    ) -> Result<Vec<u8>, String> {
        let mut process = self
            .runtime()
            .spawn(spec)
            .await
            .map_err(|error| format!("it did not start: {error}"))?;
        let (Some(mut stdin), Some(stdout), Some(stderr), Some(mut events)) =
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
            };
            let (mut answer, mut complaint) = (Vec::new(), Vec::new());
            let mut out = stdout.take(ANSWER_BYTES_MAX as u64 + 1);
            let mut err = stderr.take(STDERR_BYTES_MAX as u64);
            let exit = async {
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
            };
            let (_, _, _, exit) = tokio::join!(
                write,
                out.read_to_end(&mut answer),
                err.read_to_end(&mut complaint),
                exit
            );
            (answer, complaint, exit)
        };
        let ended = tokio::time::timeout(limit.get(), talk).await;
        // Whatever it left behind goes too; so it does if nobody waits for this any more.
        process.kill_tree();
        let Ok((answer, complaint, exit)) = ended else {
            return Err(format!("it took longer than {limit}"));
        };
        if !complaint.is_empty() {
            let said = String::from_utf8_lossy(&complaint);
            tracing::info!(command = what, %said, "the standard error of a program");
        }
        match exit? {
            AgentExit::Code(0) if answer.len() > ANSWER_BYTES_MAX => {
                Err(format!("it answered more than {ANSWER_BYTES_MAX} bytes"))
            }
            AgentExit::Code(0) => Ok(answer),
            other => Err(format!("it ended with {other}")),
        }
    }
}
