//! Which guards this machine has: what of kernel and file system keeps the daemon's promises, and
//! what is lost where one is missing.
//!
//! [`Facts::look`] asks the system, [`Facts::guards`] judges, so that every judgement can be tested
//! on any machine. Beside the loop: it is asked by `/readyz` (`spawnlet doctor`), in the daemon,
//! whose limits and mounts may differ from a terminal's. Invariants: nothing is changed (but for
//! the probe of `cgroup::detect`); every guard is told, also those that cannot be seen. Absent:
//! the daemon's own conditions, which are not the machine's.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{sandbox, sys};
use crate::api::machine::{Guard, GuardState};

/// Open files that a daemon gets by with: each agent takes about ten, each connection one, and the
/// default limits allow fewer than a hundred of either.
const OPEN_FILES_MIN: u64 = 1024;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The directory that cgroups are made in.
    pub cgroup: Option<PathBuf>,
    /// The version of Landlock's interface.
    pub landlock_abi: Option<u32>,
    /// Whether a pidfd has an inode of its own.
    pub pidfd_inode: bool,
    /// Whether openat2(2) is there.
    pub openat2: bool,
    /// Soft and hard limit of open files; `None`: unlimited.
    pub open_files: (Option<u64>, Option<u64>),
    /// The data directory and what it is on; `None`: it is not there.
    pub data_dir: Option<DataDir>,
    /// Whether orphans come to this process; `None`: this is not the daemon.
    pub is_subreaper: Option<bool>,
    /// Where it listens; `None`: this is not the daemon.
    pub listener: Option<SocketAddr>,
}

/// The data directory as it was found.
#[derive(Clone, Debug)]
pub struct DataDir {
    /// Where.
    pub path: PathBuf,
    /// The file system's type (statfs(2)).
    pub kind: u64,
    /// Permission bits.
    pub mode: u32,
    /// Whether it belongs to the user of this process.
    pub is_own: bool,
}

impl Facts {
    /// Looks at the machine. `cgroup` is what [`cgroup::detect`](super::cgroup::detect) found.
    #[must_use]
    pub fn look(data_dir: &Path, cgroup: Option<PathBuf>) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let own = sys::pidfd::open(std::process::id());
        Self {
            cgroup,
            landlock_abi: sandbox::abi(),
            pidfd_inode: own.is_ok_and(|own| sys::pidfd::inode(own).is_some()),
            openat2: sys::has_openat2(),
            open_files: (limit.current, limit.maximum),
            data_dir: look_at(data_dir),
            is_subreaper: None,
            listener: None,
        }
    }

    /// The same with what the daemon knows of itself.
    #[must_use]
    pub fn of_daemon(mut self, listener: SocketAddr) -> Self {
        self.listener = Some(listener);
        self.is_subreaper = Some(sys::is_subreaper());
        self
    }

    /// Every guard, judged.
    #[must_use]
    pub fn guards(&self) -> Vec<Guard> {
        vec![
            self.cgroup(),
            self.landlock(),
            self.pidfd_inode(),
            self.openat2(),
            self.subreaper(),
            self.open_files(),
            self.file_system(),
            self.privacy(),
            self.listener(),
        ]
    }

    fn cgroup(&self) -> Guard {
        match &self.cgroup {
            Some(path) => present("Cgroup", path.display().to_string()),
            None => guard(
                "Cgroup",
                GuardState::Absent,
                "no cgroup v2 directory that this user may write, with cgroup.kill",
                "a tree is killed one process after the other by its shim, not by the kernel at once",
                "run the daemon as a service with Delegate=yes (systemd), on Linux 5.14 or later",
            ),
        }
    }

    fn landlock(&self) -> Guard {
        let lost = "sandbox: workspace-write and read-only are refused; an agent may do what its \
                    user may";
        match self.landlock_abi {
            Some(abi) if abi >= sandbox::ABI_MIN => present("Landlock", format!("ABI {abi}")),
            Some(abi) => guard(
                "Landlock",
                GuardState::Weak,
                &format!("ABI {abi}, too old to keep signals inside (ABI {})", sandbox::ABI_MIN),
                lost,
                "run Linux 6.12 or later",
            ),
            None => guard(
                "Landlock",
                GuardState::Absent,
                "none",
                lost,
                "run Linux 6.12 or later, with landlock among the `lsm=` of its command line",
            ),
        }
    }

    fn pidfd_inode(&self) -> Guard {
        if self.pidfd_inode {
            return present("PidfdInode", "a number for each process and boot".to_owned());
        }
        guard(
            "PidfdInode",
            GuardState::Absent,
            "pidfds have no inode of their own",
            "leftovers of a killed daemon are known by start time and mark alone",
            "run Linux 6.9 or later",
        )
    }

    fn openat2(&self) -> Guard {
        if self.openat2 {
            return present(
                "Openat2",
                "files are opened below a directory without a race".to_owned(),
            );
        }
        guard(
            "Openat2",
            GuardState::Absent,
            "the system call is missing or filtered",
            "nothing is started in a sandbox, and no path of an agent's can be opened race-free",
            "run Linux 5.6 or later, or let the container's seccomp profile allow openat2",
        )
    }

    fn subreaper(&self) -> Guard {
        let lost = "an orphan whose shim was killed goes to init, and is found by its mark alone";
        let hint = "run the daemon on Linux";
        match self.is_subreaper {
            Some(true) => present("Subreaper", "orphans come to the daemon".to_owned()),
            Some(false) => guard("Subreaper", GuardState::Absent, "orphans go to init", lost, hint),
            None => unknown("Subreaper"),
        }
    }

    fn open_files(&self) -> Guard {
        let (soft, hard) = self.open_files;
        let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |n| n.to_string());
        let found = format!("{} (at most {})", shown(soft), shown(hard));
        if soft.is_none_or(|soft| soft >= OPEN_FILES_MIN) {
            return present("OpenFiles", found);
        }
        guard(
            "OpenFiles",
            GuardState::Weak,
            &found,
            "with many agents or connections starts fail for want of descriptors",
            &format!("set LimitNOFILE={OPEN_FILES_MIN} or more (systemd), or ulimit -n"),
        )
    }

    fn file_system(&self) -> Guard {
        let Some(data_dir) = &self.data_dir else { return unknown("FileSystem") };
        let (name, fault) = file_system(data_dir.kind);
        let path = data_dir.path.display();
        let Some((lost, hint)) = fault else {
            return present("FileSystem", format!("{path} is on {name}"));
        };
        guard("FileSystem", GuardState::Weak, &format!("{path} is on {name}"), lost, hint)
    }

    fn privacy(&self) -> Guard {
        let Some(data_dir) = &self.data_dir else { return unknown("DataDirectory") };
        let (path, mode) = (data_dir.path.display(), data_dir.mode & 0o777);
        let found = format!("{path} has mode {mode:04o}");
        let lost = "others can reach the token, the vault and what agents said";
        match (data_dir.is_own, mode & 0o077) {
            (true, 0) => present("DataDirectory", found),
            (true, _) => {
                let hint = format!("chmod 700 {path}");
                guard("DataDirectory", GuardState::Weak, &found, lost, &hint)
            }
            (false, _) => {
                let hint = format!("give {path} to the daemon's user (chown)");
                let found = format!("{found} and belongs to another user");
                guard("DataDirectory", GuardState::Weak, &found, lost, &hint)
            }
        }
    }

    fn listener(&self) -> Guard {
        match self.listener {
            Some(address) if address.ip().is_loopback() => {
                present("Listener", format!("{address}, this machine alone"))
            }
            Some(address) => guard(
                "Listener",
                GuardState::Weak,
                &format!("{address}, in the clear"),
                "tokens and what agents say can be read on the network",
                "listen on a loopback address, behind a proxy that speaks TLS",
            ),
            None => unknown("Listener"),
        }
    }
}

/// The name of a file system's type, and what is lost on it with what to do. The numbers are those
/// of statfs(2).
fn file_system(kind: u64) -> (String, Option<(&'static str, &'static str)>) {
    const MEMORY: (&str, &str) = (
        "everything is gone after a reboot: sessions, answers, tokens, secrets",
        "set --data-dir to a directory on a disk",
    );
    const NETWORK: (&str, &str) = (
        "locks and fsync may not hold: two daemons, or a damaged store",
        "set --data-dir to a directory on a local disk",
    );
    const LAYER: (&str, &str) = (
        "everything is gone with the container",
        "set --data-dir to a volume that outlives the container",
    );
    let (name, fault) = match kind {
        0x0102_1994 => ("tmpfs", Some(MEMORY)),
        0x8584_58f6 => ("ramfs", Some(MEMORY)),
        0x6969 => ("nfs", Some(NETWORK)),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => ("smb", Some(NETWORK)),
        0x00c3_6400 => ("ceph", Some(NETWORK)),
        0x0102_1997 => ("9p", Some(NETWORK)),
        0x6573_5546 => ("fuse", Some(NETWORK)),
        0x794c_7630 => ("overlayfs", Some(LAYER)),
        0xef53 => ("ext4", None),
        0x5846_5342 => ("xfs", None),
        0x9123_683e => ("btrfs", None),
        0x2fc1_2fc1 => ("zfs", None),
        0xf2f5_2010 => ("f2fs", None),
        other => return (format!("a file system of type {other:#x}"), None),
    };
    (name.to_owned(), fault)
}

fn look_at(data_dir: &Path) -> Option<DataDir> {
    let found = std::fs::metadata(data_dir).ok()?;
    Some(DataDir {
        path: data_dir.to_owned(),
        kind: sys::file_system(data_dir)?,
        mode: found.mode(),
        is_own: found.uid() == rustix::process::geteuid().as_raw(),
    })
}

fn guard(name: &str, state: GuardState, found: &str, lost: &str, hint: &str) -> Guard {
    let [name, found, lost, hint] = [name, found, lost, hint].map(str::to_owned);
    Guard { name, state, found, lost, hint }
}

fn present(name: &str, found: String) -> Guard {
    guard(name, GuardState::Present, &found, "", "")
}

fn unknown(name: &str) -> Guard {
    guard(name, GuardState::Unknown, "cannot be seen from here", "", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        Facts {
            cgroup: Some("/sys/fs/cgroup/a".into()),
            landlock_abi: Some(7),
            pidfd_inode: true,
            openat2: true,
            open_files: (Some(1024), None),
            data_dir: Some(data_dir(0xef53, 0o40700, true)),
            is_subreaper: Some(true),
            listener: Some(([127, 0, 0, 1], 7420).into()),
        }
    }

    fn data_dir(kind: u64, mode: u32, is_own: bool) -> DataDir {
        DataDir { path: "/data".into(), kind, mode, is_own }
    }

    /// K3 of the catalogue.
    #[test]
    fn each_thing_that_a_machine_lacks_is_told_with_its_own_hint_and_nothing_else() {
        let on = |kind| Some(data_dir(kind, 0o40700, true));
        let cases: [(&str, GuardState, &str, Facts); 14] = [
            ("Cgroup", GuardState::Absent, "Delegate=yes", Facts { cgroup: None, ..good() }),
            ("Landlock", GuardState::Absent, "lsm=", Facts { landlock_abi: None, ..good() }),
            ("Landlock", GuardState::Weak, "6.12", Facts { landlock_abi: Some(5), ..good() }),
            ("PidfdInode", GuardState::Absent, "6.9", Facts { pidfd_inode: false, ..good() }),
            ("Openat2", GuardState::Absent, "seccomp", Facts { openat2: false, ..good() }),
            (
                "Subreaper",
                GuardState::Absent,
                "Linux",
                Facts { is_subreaper: Some(false), ..good() },
            ),
            (
                "OpenFiles",
                GuardState::Weak,
                "LimitNOFILE=1024",
                Facts { open_files: (Some(256), Some(4096)), ..good() },
            ),
            (
                "FileSystem",
                GuardState::Weak,
                "on a disk",
                Facts { data_dir: on(0x0102_1994), ..good() },
            ),
            (
                "FileSystem",
                GuardState::Weak,
                "local disk",
                Facts { data_dir: on(0x6969), ..good() },
            ),
            (
                "FileSystem",
                GuardState::Weak,
                "volume",
                Facts { data_dir: on(0x794c_7630), ..good() },
            ),
            (
                "DataDirectory",
                GuardState::Weak,
                "chmod 700 /data",
                Facts { data_dir: Some(data_dir(0xef53, 0o40750, true)), ..good() },
            ),
            (
                "DataDirectory",
                GuardState::Weak,
                "chown",
                Facts { data_dir: Some(data_dir(0xef53, 0o40700, false)), ..good() },
            ),
            (
                "Listener",
                GuardState::Weak,
                "TLS",
                Facts { listener: Some(([0, 0, 0, 0], 7420).into()), ..good() },
            ),
            ("Listener", GuardState::Unknown, "", Facts { listener: None, ..good() }),
        ];
        for (name, state, hint, facts) in cases {
            let guards = facts.guards();
            let told = guards.iter().find(|one| one.name == name).unwrap();
            assert_eq!(told.state, state, "{told:?}");
            assert!(told.hint.contains(hint), "{told:?}");
            assert_eq!(told.lost.is_empty(), state == GuardState::Unknown, "{told:?}");
            let others = guards.iter().filter(|one| one.name != name);
            assert_eq!(others.filter(|one| one.state != GuardState::Present).count(), 0, "{name}");
        }
    }

    /// The negative control of K3.
    #[test]
    fn a_machine_that_has_everything_gets_no_hint() {
        for told in good().guards() {
            assert_eq!(told.state, GuardState::Present, "{told:?}");
            assert!(told.lost.is_empty() && told.hint.is_empty() && !told.found.is_empty());
        }
    }

    #[test]
    fn this_machine_is_seen_whole() {
        let directory = tempfile::tempdir().unwrap();
        let facts = Facts::look(directory.path(), None).of_daemon(([127, 0, 0, 1], 1).into());
        assert!(facts.data_dir.as_ref().is_some_and(|found| found.is_own && found.kind != 0));
        assert!(facts.guards().iter().all(|guard| guard.state != GuardState::Unknown));
        assert!(Facts::look(Path::new("/nowhere"), None).data_dir.is_none());
    }
}
