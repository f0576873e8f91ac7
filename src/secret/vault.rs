//! The vault: secrets at rest, in one file of the data directory.
//!
//! `vault.json` (0600) holds each value encrypted by XChaCha20-Poly1305 with a nonce of its own and
//! its name as associated data, so that no entry can stand in another's place. The key is 32 random
//! bytes as hex in `vault.key` (0600) beside it, made with the first secret, or in the daemon's
//! environment (`SPAWNLET_VAULT_KEY`). Invariants: a file is replaced whole (written, synced,
//! renamed, directory synced); a key that does not fit is found before anything is written; the
//! names are readable, the values never leave but by [`Vault::get`], which only a launch calls.
//! Absent: more than one key, and its change (set the secrets again).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::Secret;
use super::redact::REDACTED_BYTES_MIN;
use crate::api::hex;
use crate::api::secret::SecretName;
use crate::ports::{SecretFault, Secrets};

/// The variable of the daemon's environment that holds the key, as 64 hex digits.
pub const KEY_VARIABLE: &str = "SPAWNLET_VAULT_KEY";
const VAULT_FILE: &str = "vault.json";
const NEW_FILE: &str = "vault.json.new";
const KEY_FILE: &str = "vault.key";
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// How large a value may be; the largest that is known, a service account's file, has 3 KiB.
pub const VALUE_BYTES_MAX: usize = 16 * 1024;
/// How many there may be: a few for each agent. The file then has 10 MiB at most.
const ENTRIES_MAX: usize = 256;
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// What the key is checked with; no secret can have this name.
const CHECK: &str = "spawnlet vault 1";

/// Why the vault did not do what was asked. No variant holds a value.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{} cannot be {what}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// `read` or `written`.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Others can read a file.
    #[error("{} can be read by others (mode {mode:o}): make it 0600", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is not what was written.
    #[error("{} is damaged: {problem}", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The key is not there.
    #[error(
        "the vault has secrets, and its key {} is gone: put it back, or remove {VAULT_FILE} and set the secrets again",
        path.display()
    )]
    KeyMissing {
        /// Where it was.
        path: PathBuf,
    },
    /// The key is no key.
    #[error("{place} is no key: expected 64 hex digits")]
    KeyInvalid {
        /// The file, or the variable.
        place: String,
    },
    /// The vault was written with another key.
    #[error("the vault was written with another key than that of {place}")]
    KeyWrong {
        /// The file, or the variable.
        place: String,
    },
    /// The value cannot be kept.
    #[error("the value {0}")]
    Value(String),
    /// There are too many.
    #[error("the vault has {ENTRIES_MAX} secrets, the most that it takes; delete one")]
    Full,
}

/// The file as it stands on disk.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    check: Sealed,
    secrets: BTreeMap<String, Sealed>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    nonce: String,
    sealed: String,
}

/// The vault of a data directory. Nothing is read before it is needed.
pub struct Vault {
    dir: PathBuf,
    key: Option<Secret>,
    /// One writer at a time; the daemon has the directory for itself.
    writing: Mutex<()>,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Vault {
    /// The vault in a data directory; `key` is what [`KEY_VARIABLE`] holds.
    #[must_use]
    pub fn new(dir: &Path, key: Option<Secret>) -> Self {
        Self { dir: dir.to_owned(), key, writing: Mutex::default() }
    }

    /// The vault of this daemon: its key may be in the environment.
    #[must_use]
    pub fn of_daemon(dir: &Path) -> Self {
        let key = std::env::var_os(KEY_VARIABLE);
        Self::new(dir, key.map(|key| Secret::new(key.to_string_lossy().into_owned())))
    }

    /// A value; `None` if there is none of this name.
    ///
    /// # Errors
    ///
    /// The file or the key cannot be used.
    pub fn get(&self, name: &SecretName) -> Result<Option<Secret>, Error> {
        let Some(stored) = self.read()? else { return Ok(None) };
        let Some(sealed) = stored.secrets.get(name.as_str()) else { return Ok(None) };
        let cipher = self.cipher(Some(&stored))?;
        let plain = open(&cipher, name.as_str(), sealed)
            .map_err(|problem| self.damaged(format!("{}: {problem}", name.as_str())))?;
        let text = String::from_utf8(plain.to_vec());
        text.map(|text| Some(Secret::new(text)))
            .map_err(|_| self.damaged(format!("{}: no text", name.as_str())))
    }

    /// Keeps a value; whether the name was new.
    ///
    /// # Errors
    ///
    /// The value cannot be kept, the vault is full, or file or key cannot be used.
    pub fn put(&self, name: &SecretName, value: &Secret) -> Result<bool, Error> {
        check_value(value.expose())?;
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = self.read()?;
        let cipher = self.cipher(stored.as_ref())?;
        let mut stored = match stored {
            Some(stored) => stored,
            None => Stored {
                version: 1,
                check: self.seal(&cipher, CHECK, b"")?,
                secrets: BTreeMap::new(),
            },
        };
        let is_new = !stored.secrets.contains_key(name.as_str());
        if is_new && stored.secrets.len() >= ENTRIES_MAX {
            return Err(Error::Full);
        }
        let sealed = self.seal(&cipher, name.as_str(), value.expose().as_bytes())?;
        stored.secrets.insert(name.as_str().to_owned(), sealed);
        self.write(&stored)?;
        Ok(is_new)
    }

    /// Removes a value; whether there was one.
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub fn remove(&self, name: &SecretName) -> Result<bool, Error> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut stored) = self.read()? else { return Ok(false) };
        if stored.secrets.remove(name.as_str()).is_none() {
            return Ok(false);
        }
        self.write(&stored)?;
        Ok(true)
    }

    /// The names of all secrets, in order.
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub fn names(&self) -> Result<Vec<String>, Error> {
        Ok(self.read()?.map(|stored| stored.secrets.into_keys().collect()).unwrap_or_default())
    }

    fn damaged(&self, problem: impl Into<String>) -> Error {
        Error::Damaged { path: self.dir.join(VAULT_FILE), problem: problem.into() }
    }

    fn read(&self) -> Result<Option<Stored>, Error> {
        let path = self.dir.join(VAULT_FILE);
        let Some(bytes) = read_private(&path, FILE_BYTES_MAX)? else { return Ok(None) };
        let stored: Stored = serde_json::from_slice(&bytes)
            .map_err(|error| self.damaged(format!("line {}: no vault", error.line())))?;
        if stored.version != 1 {
            return Err(self.damaged(format!("version {} is not known here", stored.version)));
        }
        Ok(Some(stored))
    }

    fn write(&self, stored: &Stored) -> Result<(), Error> {
        let (path, new) = (self.dir.join(VAULT_FILE), self.dir.join(NEW_FILE));
        let written = || -> io::Result<()> {
            let bytes = serde_json::to_vec_pretty(stored).map_err(io::Error::other)?;
            // One that a crash left may be of another mode.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            create_private(&new, &bytes)?;
            fs::rename(&new, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        written().map_err(|source| Error::File { path: path.clone(), what: "written", source })
    }

    /// The cipher, with the key proven to fit what is stored. Makes a key where nothing is stored.
    fn cipher(&self, stored: Option<&Stored>) -> Result<XChaCha20Poly1305, Error> {
        let path = self.dir.join(KEY_FILE);
        let (text, place) = match &self.key {
            Some(key) => (Zeroizing::new(key.expose().to_owned()), KEY_VARIABLE.to_owned()),
            None => {
                let place = path.display().to_string();
                match read_private(&path, 4096)? {
                    Some(bytes) => {
                        (Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned()), place)
                    }
                    None if stored.is_some() => return Err(Error::KeyMissing { path }),
                    None => (make_key(&path, &self.dir)?, place),
                }
            }
        };
        let key = unhex(text.trim()).filter(|key| key.len() == KEY_BYTES);
        let invalid = || Error::KeyInvalid { place: place.clone() };
        let key = key.ok_or_else(invalid)?;
        let cipher = XChaCha20Poly1305::new_from_slice(&key).map_err(|_| invalid())?;
        if let Some(stored) = stored
            && open(&cipher, CHECK, &stored.check).is_err()
        {
            return Err(Error::KeyWrong { place });
        }
        Ok(cipher)
    }

    fn seal(&self, cipher: &XChaCha20Poly1305, name: &str, value: &[u8]) -> Result<Sealed, Error> {
        let nonce: [u8; NONCE_BYTES] = rand::random();
        let payload = Payload { msg: value, aad: name.as_bytes() };
        let sealed = cipher
            .encrypt(&XNonce::from(nonce), payload)
            .map_err(|_| self.damaged("a value could not be encrypted (a defect)"))?;
        Ok(Sealed { nonce: hex(&nonce), sealed: hex(&sealed) })
    }
}

fn open(
    cipher: &XChaCha20Poly1305,
    name: &str,
    sealed: &Sealed,
) -> Result<Zeroizing<Vec<u8>>, &'static str> {
    let nonce = unhex(&sealed.nonce).and_then(|nonce| <[u8; NONCE_BYTES]>::try_from(&**nonce).ok());
    let (Some(nonce), Some(bytes)) = (nonce, unhex(&sealed.sealed)) else {
        return Err("is no hex");
    };
    let payload = Payload { msg: bytes.as_slice(), aad: name.as_bytes() };
    let plain = cipher.decrypt(&XNonce::from(nonce), payload);
    plain.map(Zeroizing::new).map_err(|_| "is not what was written under this name with this key")
}

fn check_value(value: &str) -> Result<(), Error> {
    let problem = if value.len() < REDACTED_BYTES_MIN {
        format!("is shorter than {REDACTED_BYTES_MIN} bytes: it could not be told from other text")
    } else if value.len() > VALUE_BYTES_MAX {
        format!("is longer than {VALUE_BYTES_MAX} bytes")
    } else if value.contains('\0') {
        "holds a NUL, which no variable can hold".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::Value(problem))
}

/// Reads a file that only its owner may read; `None` if it is not there.
fn read_private(path: &Path, bytes_max: u64) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    let failed = |source| Error::File { path: path.to_owned(), what: "read", source };
    let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(nofollow).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Error::Open { path: path.to_owned(), mode });
    }
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(bytes_max).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

fn create_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn make_key(path: &Path, dir: &Path) -> Result<Zeroizing<String>, Error> {
    let random = Zeroizing::new(rand::random::<[u8; KEY_BYTES]>());
    let text = Zeroizing::new(hex(&*random));
    create_private(path, text.as_bytes())
        .and_then(|()| File::open(dir)?.sync_all())
        .map_err(|source| Error::File { path: path.to_owned(), what: "written", source })?;
    Ok(text)
}

fn unhex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    for [high, low] in pairs {
        bytes.push(digit(*high)? << 4 | digit(*low)?);
    }
    Some(bytes)
}

impl From<Error> for SecretFault {
    fn from(error: Error) -> Self {
        match error {
            Error::Value(_) => Self::Invalid(error.to_string()),
            Error::Full => Self::Full(error.to_string()),
            Error::File { .. }
            | Error::Open { .. }
            | Error::Damaged { .. }
            | Error::KeyMissing { .. }
            | Error::KeyInvalid { .. }
            | Error::KeyWrong { .. } => Self::Unusable(error.to_string()),
        }
    }
}

fn named(name: &str) -> Result<SecretName, SecretFault> {
    SecretName::parse(name).map_err(|expected| {
        SecretFault::Invalid(format!("{name:?} is no name of a secret: {expected}"))
    })
}

impl Secrets for Vault {
    fn names(&self) -> Result<Vec<String>, SecretFault> {
        Ok(Self::names(self)?)
    }

    fn set(&self, name: &str, value: String) -> Result<bool, SecretFault> {
        let value = Secret::new(value);
        Ok(self.put(&named(name)?, &value)?)
    }

    fn delete(&self, name: &str) -> Result<bool, SecretFault> {
        Ok(self.remove(&named(name)?)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn name(text: &str) -> SecretName {
        SecretName::parse(text).unwrap()
    }

    fn value(text: &str) -> Secret {
        Secret::new(text.to_owned())
    }

    #[test]
    fn a_value_comes_back_under_its_name_alone_and_is_nowhere_in_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::new(dir.path(), None);
        let (key, other) = (name("providers/codex/key"), name("providers/codex/other"));
        assert_eq!(vault.get(&key).unwrap(), None);
        assert!(vault.put(&key, &value("canary-0001")).unwrap());
        assert!(vault.put(&other, &value("canary-0002")).unwrap());
        assert!(!vault.put(&key, &value("canary-0003")).unwrap());
        let vault = Vault::new(dir.path(), None);
        assert_eq!(vault.get(&key).unwrap(), Some(value("canary-0003")));
        assert_eq!(vault.names().unwrap(), ["providers/codex/key", "providers/codex/other"]);
        for file in fs::read_dir(dir.path()).unwrap() {
            let path = file.unwrap().path();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{path:?}");
            assert!(!String::from_utf8_lossy(&fs::read(&path).unwrap()).contains("canary"));
        }

        // An entry in another's place is found out.
        let path = dir.path().join(VAULT_FILE);
        let mut stored: Stored = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let moved = stored.secrets["providers/codex/other"].clone();
        stored.secrets.insert("providers/codex/key".to_owned(), moved);
        vault.write(&stored).unwrap();
        assert!(matches!(vault.get(&key), Err(Error::Damaged { .. })));

        assert!(vault.remove(&key).unwrap());
        assert!(!vault.remove(&key).unwrap());
        assert_eq!(vault.names().unwrap(), ["providers/codex/other"]);
    }

    #[test]
    fn a_key_that_does_not_fit_changes_nothing_and_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let key = name("providers/a/b");
        Vault::new(dir.path(), None).put(&key, &value("canary-0001")).unwrap();
        let before = fs::read(dir.path().join(VAULT_FILE)).unwrap();
        let wrong = Vault::new(dir.path(), Some(value(&"ab".repeat(32))));
        assert!(matches!(wrong.put(&key, &value("canary-0002")), Err(Error::KeyWrong { .. })));
        assert!(matches!(wrong.get(&key), Err(Error::KeyWrong { .. })));
        let no_key = Vault::new(dir.path(), Some(value("sesame")));
        assert!(matches!(no_key.get(&key), Err(Error::KeyInvalid { .. })));
        assert_eq!(fs::read(dir.path().join(VAULT_FILE)).unwrap(), before);

        let file = dir.path().join(KEY_FILE);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let vault = Vault::new(dir.path(), None);
        assert!(matches!(vault.get(&key), Err(Error::Open { mode: 0o640, .. })));
        fs::remove_file(&file).unwrap();
        assert!(matches!(vault.put(&key, &value("canary-0002")), Err(Error::KeyMissing { .. })));
        assert!(!file.exists());
    }

    #[test]
    fn the_key_may_come_from_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::new(dir.path(), Some(value(&"0a".repeat(32))));
        let key = name("providers/a/b");
        vault.put(&key, &value("canary-0001")).unwrap();
        assert_eq!(vault.get(&key).unwrap(), Some(value("canary-0001")));
        assert!(!dir.path().join(KEY_FILE).exists());
    }

    #[test]
    fn values_that_cannot_be_kept_are_refused_and_not_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::new(dir.path(), None);
        for wrong in ["sh0rt!x", "with\0a nul", &"x".repeat(VALUE_BYTES_MAX + 1)] {
            let refused = vault.put(&name("providers/a/b"), &value(wrong)).unwrap_err();
            assert!(matches!(refused, Error::Value(_)), "{refused}");
            assert!(!refused.to_string().contains(wrong));
        }
    }
}
