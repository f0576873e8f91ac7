//! What the daemon and `spawnlet-shim` say to each other over the shim's three pipes.
//!
//! This file is compiled into the library and, by path, into the shim: the shim links nothing of
//! the library, and the two cannot disagree about a byte. A shim of another version is refused by
//! its greeting, so nothing here needs to be compatible with anything else.
//!
//! - Lifeline (daemon to shim): single bytes, [`TERM`] and [`KILL`]. Its end is the daemon's end.
//! - Gate (daemon to shim): the length and the block made by [`encode_launch`], then [`OPEN`]. Its
//!   end before that byte means that no agent is started.
//! - Status (shim to daemon): frames of [`FRAME_BYTES`], a tag and a number.

/// The shim's descriptor of the lifeline.
pub(crate) const LIFELINE_FD: i32 = 3;
/// The shim's descriptor of the gate.
pub(crate) const GATE_FD: i32 = 4;
/// The shim's descriptor of the status pipe.
pub(crate) const STATUS_FD: i32 = 5;

/// Lifeline: SIGTERM and SIGCONT to the agent's process group.
pub(crate) const TERM: u8 = b'T';
/// Lifeline: kill the tree until it is empty.
pub(crate) const KILL: u8 = b'K';
/// Gate: start the agent.
pub(crate) const OPEN: u8 = b'O';

/// One frame of the status pipe: a tag and a little-endian `i32`. Far below `PIPE_BUF`, so that
/// each is written whole.
pub(crate) const FRAME_BYTES: usize = 5;
/// Status: the shim runs; the number is the length of its version, which follows.
pub(crate) const HELLO: u8 = b'H';
/// Status: the launch block is read, the shim waits at the gate.
pub(crate) const READY: u8 = b'R';
/// Status: the agent was executed; the number is its pid.
pub(crate) const STARTED: u8 = b'S';
/// Status: the agent's directory could not be entered; the number is the errno.
pub(crate) const CWD_FAILED: u8 = b'D';
/// Status: the cgroup could not be joined; the number is the errno.
pub(crate) const CGROUP_FAILED: u8 = b'G';
/// Status: the sandbox could not be put around the agent; the number is the errno.
pub(crate) const SANDBOX_FAILED: u8 = b'L';
/// Status: the agent could not be executed; the number is the errno.
pub(crate) const EXEC_FAILED: u8 = b'F';
/// Status: the agent exited; the number is its exit code.
pub(crate) const EXITED: u8 = b'X';
/// Status: the agent was killed; the number is the signal.
pub(crate) const SIGNALLED: u8 = b'K';
/// Status: no process of the tree is left. The shim's last word.
pub(crate) const EMPTY: u8 = b'E';

/// The longest version that is believed.
pub(crate) const VERSION_BYTES_MAX: usize = 64;
/// The largest launch block: more than any Linux takes as arguments and environment (execve(2): a
/// quarter of the stack limit, at most 6 MiB).
pub(crate) const LAUNCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The numbers that the block begins with: of arguments, of variables, of rules.
pub(crate) const LAUNCH_HEAD_BYTES: usize = 12;

/// Sandbox rule: all may be done below this path. It has no link in it.
pub(crate) const RULE_WRITE: u8 = b'w';
/// Sandbox rule: a device, or a directory of devices, to be used if it is there.
pub(crate) const RULE_DEVICE: u8 = b'd';
/// Sandbox rule: this path and what is below it is not to be read. It has no link in it.
pub(crate) const RULE_HIDE: u8 = b'h';

/// A frame of the status pipe.
pub(crate) fn frame(tag: u8, number: i32) -> [u8; FRAME_BYTES] {
    let [a, b, c, d] = number.to_le_bytes();
    [tag, a, b, c, d]
}

/// The tag and number of a frame.
pub(crate) fn parse_frame(frame: [u8; FRAME_BYTES]) -> (u8, i32) {
    let [tag, a, b, c, d] = frame;
    (tag, i32::from_le_bytes([a, b, c, d]))
}

/// The launch block behind its length: the number of arguments, of variables and of sandbox rules,
/// then the strings (directory, cgroup or nothing, arguments, `NAME=value`, rules: a byte for the
/// kind and a path), each ended by NUL so that the shim can point into the block instead of copying
/// it. No string may contain NUL. Without rules there is no sandbox.
pub(crate) fn encode_launch(
    cwd: &[u8],
    cgroup: &[u8],
    argv: &[Vec<u8>],
    env: &[Vec<u8>],
    rules: &[Vec<u8>],
) -> Vec<u8> {
    let mut block = Vec::new();
    block.extend_from_slice(&to_u32(argv.len()).to_le_bytes());
    block.extend_from_slice(&to_u32(env.len()).to_le_bytes());
    block.extend_from_slice(&to_u32(rules.len()).to_le_bytes());
    for text in [cwd, cgroup]
        .into_iter()
        .chain(argv.iter().map(Vec::as_slice))
        .chain(env.iter().map(Vec::as_slice))
        .chain(rules.iter().map(Vec::as_slice))
    {
        block.extend_from_slice(text);
        block.push(0);
    }
    let mut message = to_u32(block.len()).to_le_bytes().to_vec();
    message.append(&mut block);
    message
}

// Lengths are bounded by LAUNCH_BYTES_MAX before anything is sent: a saturated one is refused.
fn to_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
