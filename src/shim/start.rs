//! How the shim sets itself apart and starts the agent.

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit};

use super::wire;

// Of the C library that std is linked with anyway (each is a page of section 2 of the manual).
unsafe extern "C" {
    fn fork() -> c_int;
    fn close(fd: c_int) -> c_int;
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char)
    -> c_int;
    fn signal(number: c_int, action: usize) -> usize;
    fn _exit(code: c_int) -> !;
}

const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;
/// Signals that a terminal, a service manager or an agent may send to the shim. It outlives them:
/// only the daemon ends it, by the lifeline.
const IGNORED: [rustix::process::Signal; 6] = [
    rustix::process::Signal::HUP,
    rustix::process::Signal::INT,
    rustix::process::Signal::QUIT,
    rustix::process::Signal::TERM,
    rustix::process::Signal::USR1,
    rustix::process::Signal::USR2,
];
/// The highest signal number of Linux.
const SIGNAL_MAX: c_int = 64;

/// A session of its own, orphans come here, no privileges by setuid programs, no core files (they
/// would hold secrets), and no descriptor that the daemon did not mean to give.
pub(super) fn isolate() -> Result<(), Errno> {
    for ignored in IGNORED {
        // SAFETY: signal(2) with SIG_IGN touches no memory.
        unsafe { signal(ignored.as_raw(), SIG_IGN) };
    }
    // EPERM: it leads a session already.
    let _ = rustix::process::setsid();
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        rustix::thread::set_no_new_privs(true)?;
    }
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    close_foreign();
    Ok(())
}

/// Closes what lies above the fixed descriptors, in case the daemon let one slip.
fn close_foreign() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let foreign: Vec<RawFd> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|number| *number > wire::STATUS_FD)
        .collect();
    for number in foreign {
        // SAFETY: nothing in this process has opened a descriptor yet but the listing itself,
        // which is closed by now: its number fails with EBADF, harmlessly.
        unsafe { close(number) };
    }
}

/// A pipe that no program inherits: std makes them so.
fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let ends = std::io::pipe().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
    ends.map(|(reader, writer)| (reader.into(), writer.into()))
}

/// The end that the handler of SIGCHLD writes to.
static DEATHS: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_child(_number: c_int) {
    let number = DEATHS.load(Ordering::Relaxed);
    if number >= 0 {
        // SAFETY: the descriptor stays open for the life of the process.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
        // Full means that a wake-up is waiting already. A raw system call: errno is untouched.
        let _ = rustix::io::write(fd, &[0]);
    }
}

/// A descriptor that becomes readable when a child has died.
pub(super) fn watch_children() -> Result<OwnedFd, Errno> {
    let (reader, writer) = pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    rustix::io::ioctl_fionbio(&writer, true)?;
    DEATHS.store(writer.as_raw_fd(), Ordering::Relaxed);
    std::mem::forget(writer);
    let handler: extern "C" fn(c_int) = on_child;
    // SAFETY: the handler makes one system call and touches one atomic.
    unsafe { signal(rustix::process::Signal::CHILD.as_raw(), handler as usize) };
    Ok(reader)
}

/// What is to be started: one block of NUL-ended strings as it came.
pub(super) struct Launch {
    block: Vec<u8>,
    argc: usize,
    envc: usize,
    /// How many rules of the sandbox follow; none: no sandbox.
    rulec: usize,
}

/// Reads what to start; none if the daemon went away before it had told all.
pub(super) fn read_launch(gate: &OwnedFd) -> Result<Option<Launch>, Errno> {
    let mut length = [0_u8; 4];
    if !read_exact(gate, &mut length)? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if !(wire::LAUNCH_HEAD_BYTES..=wire::LAUNCH_BYTES_MAX).contains(&length) {
        return Err(Errno::TOOBIG);
    }
    let mut block = vec![0_u8; length];
    if !read_exact(gate, &mut block)? {
        return Ok(None);
    }
    let number = |at: usize| {
        let bytes = block.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes) as usize
    };
    let (argc, envc, rulec) = (number(0), number(4), number(8));
    let launch = Launch { argc, envc, rulec, block };
    let strings = argc.saturating_add(envc).saturating_add(rulec).saturating_add(2);
    let whole = launch.strings().count() == strings && launch.block.last() == Some(&0);
    if whole && argc > 0 { Ok(Some(launch)) } else { Err(Errno::INVAL) }
}

fn read_exact(fd: &OwnedFd, mut buffer: &mut [u8]) -> Result<bool, Errno> {
    while !buffer.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut *buffer))? {
            0 => return Ok(false),
            count => buffer = buffer.get_mut(count..).unwrap_or_default(),
        }
    }
    Ok(true)
}

/// Whether the daemon opened the gate.
pub(super) fn wait_for_gate(gate: &OwnedFd) -> Result<bool, Errno> {
    let mut byte = [0_u8; 1];
    Ok(read_exact(gate, &mut byte)? && byte == [wire::OPEN])
}

/// Puts /dev/null in the place of the agent's pipes.
pub(super) fn let_go_of_stdio() -> Result<(), Errno> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)
}

impl Launch {
    fn strings(&self) -> impl Iterator<Item = &CStr> {
        let text = self.block.get(wire::LAUNCH_HEAD_BYTES..).unwrap_or_default();
        text.split_inclusive(|byte| *byte == 0)
            .filter_map(|string| CStr::from_bytes_with_nul(string).ok())
    }

    /// The cgroup's directory, if the agent gets one.
    pub(super) fn cgroup(&self) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStrExt;
        let bytes = self.strings().nth(1)?.to_bytes();
        (!bytes.is_empty()).then(|| std::ffi::OsStr::from_bytes(bytes).into())
    }

    /// The sandbox's rules, if there is to be one.
    fn rules(&self) -> Option<impl Iterator<Item = &CStr>> {
        let rules = self.strings().skip(2 + self.argc + self.envc);
        (self.rulec > 0).then_some(rules)
    }

    /// Forks the agent. The pipe that comes back ends when the agent was executed, and carries one
    /// frame if it could not be.
    pub(super) fn start(mut self) -> Result<(Pid, OwnedFd), Errno> {
        let pointers = |from: usize, count: usize| {
            let mut list: Vec<*const c_char> =
                self.strings().skip(from).take(count).map(CStr::as_ptr).collect();
            list.push(std::ptr::null());
            list
        };
        let argv = pointers(2, self.argc);
        let envp = pointers(2 + self.argc, self.envc);
        let cwd = self.strings().next().ok_or(Errno::INVAL)?.as_ptr();
        let procs = self.cgroup().map(|directory| directory.join("cgroup.procs"));
        let (reader, writer) = pipe()?;
        // Only the shim's end: its wait must not hang on an exec that does not come back.
        rustix::io::ioctl_fionbio(&reader, true)?;
        // SAFETY: this process has one thread, so the child may do whatever the parent may.
        let pid = unsafe { fork() };
        match pid {
            0 => {
                let rules = self.rules();
                // SAFETY: the lists end with null and point into `block`, which outlives the exec.
                let (tag, errno) = unsafe { become_agent(procs, cwd, rules, &argv, &envp) };
                let frame = wire::frame(tag, errno.raw_os_error());
                let _ = rustix::io::write(&writer, &frame);
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { _exit(127) }
            }
            1.. => {
                drop(writer);
                // The block holds the agent's secrets: it is not kept.
                self.block.fill(0);
                std::hint::black_box(&self.block);
                let agent = Pid::from_raw(pid).ok_or(Errno::INVAL)?;
                // The child does the same: whoever comes first. EACCES after its exec.
                let _ = rustix::process::setpgid(Some(agent), Some(agent));
                Ok((agent, reader))
            }
            _ => Err(Errno::AGAIN),
        }
    }
}

/// In the child: group, signals, cgroup, directory, sandbox, exec. Comes back only if one fails.
///
/// # Safety
///
/// `cwd` is a C string; `argv` and `envp` are lists of C strings that end with null.
unsafe fn become_agent<'a>(
    procs: Option<PathBuf>,
    cwd: *const c_char,
    rules: Option<impl Iterator<Item = &'a CStr>>,
    argv: &[*const c_char],
    envp: &[*const c_char],
) -> (u8, Errno) {
    let _ = rustix::process::setpgid(None, None);
    // What is ignored stays ignored through exec: an agent must be able to be terminated.
    for number in 1..=SIGNAL_MAX {
        // SAFETY: SIG_DFL touches no memory; numbers that cannot be set are refused.
        unsafe { signal(number, SIG_DFL) };
    }
    if let Some(procs) = procs
        && let Err(error) = std::fs::write(procs, "0")
    {
        return (wire::CGROUP_FAILED, Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: promised by the caller.
    if let Err(errno) = rustix::process::chdir(unsafe { CStr::from_ptr(cwd) }) {
        return (wire::CWD_FAILED, errno);
    }
    if let Some(rules) = rules
        && let Err(errno) = confine(rules)
    {
        return (wire::SANDBOX_FAILED, errno);
    }
    let Some(program) = argv.first() else { return (wire::EXEC_FAILED, Errno::INVAL) };
    // execve and not execvp: that one gives a file without an interpreter line to a shell.
    // SAFETY: promised by the caller.
    unsafe { execve(*program, argv.as_ptr(), envp.as_ptr()) };
    let error = std::io::Error::last_os_error();
    (wire::EXEC_FAILED, Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(target_os = "linux")]
fn confine<'a>(rules: impl Iterator<Item = &'a CStr>) -> Result<(), Errno> {
    super::landlock::apply(rules)
}

/// The daemon asks for no sandbox where there is none.
#[cfg(not(target_os = "linux"))]
fn confine<'a>(_rules: impl Iterator<Item = &'a CStr>) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}
