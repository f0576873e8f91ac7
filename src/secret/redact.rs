//! Keeps secrets that are in use out of what is written: each occurrence becomes `[redacted]`.
//!
//! One set for the whole daemon: what one agent was given is not shown if another one prints it.
//! Looked for are the value itself, its form inside of a JSON string, and its percent-encoded form.
//! Invariants: without a secret in the set nothing is searched or copied; a stream is searched over
//! the borders of its pieces. Absent: other encodings (base64, hex), pieces of a value, and values
//! under [`REDACTED_BYTES_MIN`], which cannot be told from ordinary text.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;
use zeroize::Zeroizing;

use super::Secret;

/// What stands in a secret's place.
pub const MARK: &str = "[redacted]";
/// Shorter values are let through: a word like `dummy` would be crossed out everywhere.
pub const REDACTED_BYTES_MIN: usize = 8;

/// The secrets that are in use. A cheap handle.
#[derive(Clone, Default)]
pub struct Redactor {
    set: Arc<Set>,
}

#[derive(Default)]
struct Set {
    /// How many hold each value.
    held: Mutex<HashMap<Secret, usize>>,
    search: RwLock<Option<Arc<Search>>>,
}

struct Search {
    machine: AhoCorasick,
    forms: Vec<Zeroizing<Vec<u8>>>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor")
    }
}

/// Keeps values in the set for as long as it lives.
#[must_use = "what is dropped at once redacts nothing"]
pub struct Lease {
    set: Arc<Set>,
    values: Vec<Secret>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.set.change(|held| {
            for value in &self.values {
                if let Some(count) = held.get_mut(value) {
                    *count -= 1;
                    if *count == 0 {
                        held.remove(value);
                    }
                }
            }
        });
    }
}

impl Set {
    /// Changes who holds what, and makes the search anew if the values are other ones.
    fn change(&self, change: impl FnOnce(&mut HashMap<Secret, usize>)) {
        // Counts are whole whatever panicked; the lock orders the searches that are made.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let before = held.len();
        let is_new = {
            let known: Vec<Secret> = held.keys().cloned().collect();
            change(&mut held);
            held.len() != before || known.iter().any(|value| !held.contains_key(value))
        };
        if is_new {
            let search = Search::new(held.keys()).map(Arc::new);
            *self.search.write().unwrap_or_else(PoisonError::into_inner) = search;
        }
    }

    fn search(&self) -> Option<Arc<Search>> {
        self.search.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Search {
    fn new<'a>(values: impl Iterator<Item = &'a Secret>) -> Option<Self> {
        let forms: Vec<Zeroizing<Vec<u8>>> = values.flat_map(forms).collect();
        if forms.is_empty() {
            return None;
        }
        let machine = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(forms.iter().map(|form| form.as_slice()));
        match machine {
            Ok(machine) => Some(Self { machine, forms }),
            // Only of more than four billion states; the vault and the slots are bounded.
            Err(error) => {
                tracing::error!(%error, "secrets cannot be searched for (a defect)");
                None
            }
        }
    }

    fn bytes(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut clean: Option<Vec<u8>> = None;
        let mut from = 0;
        for found in self.machine.find_iter(text) {
            let clean = clean.get_or_insert_default();
            clean.extend_from_slice(&text[from..found.start()]);
            clean.extend_from_slice(MARK.as_bytes());
            from = found.end();
        }
        let mut clean = clean?;
        clean.extend_from_slice(&text[from..]);
        Some(clean)
    }

    fn text(&self, text: &str) -> Option<String> {
        // Forms are whole characters, so that what stands around them is too.
        self.bytes(text.as_bytes()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Every string and key of a value, and a number that is a secret. Whether anything changed.
    fn json(&self, value: &mut Value) -> bool {
        match value {
            Value::Null | Value::Bool(_) => false,
            Value::Number(number) => {
                let is_secret = self.machine.is_match(number.to_string().as_str());
                if is_secret {
                    *value = MARK.into();
                }
                is_secret
            }
            Value::String(text) => match self.text(text) {
                Some(clean) => {
                    *text = clean;
                    true
                }
                None => false,
            },
            Value::Array(items) => {
                items.iter_mut().fold(false, |changed, item| self.json(item) | changed)
            }
            Value::Object(fields) => {
                let has_key = fields.keys().any(|key| self.machine.is_match(key.as_str()));
                if has_key {
                    let old = std::mem::take(fields);
                    let clean =
                        |(key, value): (String, Value)| (self.text(&key).unwrap_or(key), value);
                    fields.extend(old.into_iter().map(clean));
                }
                fields.values_mut().fold(has_key, |changed, field| self.json(field) | changed)
            }
        }
    }

    /// Where the longest end of `text` begins that may be the beginning of a secret.
    fn open_end(&self, text: &[u8]) -> usize {
        let begins = |form: &Zeroizing<Vec<u8>>| {
            let first = *form.first()?;
            let from = text.len().saturating_sub(form.len() - 1);
            let end = &text[from..];
            let at = memchr::memchr_iter(first, end).find(|at| form.starts_with(&end[*at..]))?;
            Some(from + at)
        };
        self.forms.iter().filter_map(begins).min().unwrap_or(text.len())
    }
}

/// What a value looks like where it is written.
fn forms(value: &Secret) -> Vec<Zeroizing<Vec<u8>>> {
    let plain = value.expose();
    let quoted = Zeroizing::new(Value::from(plain).to_string());
    let escaped = quoted.trim_matches('"');
    let mut percent = Zeroizing::new(String::with_capacity(plain.len()));
    for byte in plain.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            percent.push(char::from(byte));
        } else {
            percent.push_str(&format!("%{byte:02X}"));
        }
    }
    let mut forms = vec![Zeroizing::new(plain.as_bytes().to_vec())];
    for other in [escaped, percent.as_str()] {
        if other != plain {
            forms.push(Zeroizing::new(other.as_bytes().to_vec()));
        }
    }
    forms
}

impl Redactor {
    /// Takes values into the set until the lease is dropped. Too short ones are left out.
    pub fn hold(&self, values: impl IntoIterator<Item = Secret>) -> Lease {
        let long = |value: &Secret| value.expose().len() >= REDACTED_BYTES_MIN;
        let values: Vec<Secret> = values.into_iter().filter(long).collect();
        self.set.change(|held| {
            for value in &values {
                *held.entry(value.clone()).or_default() += 1;
            }
        });
        Lease { set: Arc::clone(&self.set), values }
    }

    /// Whether no secret is in the set: nothing need be searched.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.set.search().is_none()
    }

    /// A text without secrets.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.set.search().and_then(|search| search.text(text)) {
            Some(clean) => Cow::Owned(clean),
            None => Cow::Borrowed(text),
        }
    }

    /// Bytes without secrets.
    #[must_use]
    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.set.search().and_then(|search| search.bytes(bytes)) {
            Some(clean) => Cow::Owned(clean),
            None => Cow::Borrowed(bytes),
        }
    }

    /// A JSON value without secrets; whether there were any.
    pub fn json(&self, value: &mut Value) -> bool {
        self.set.search().is_some_and(|search| search.json(value))
    }

    /// A JSON text without secrets, however they are escaped in it. It stays JSON.
    #[must_use]
    pub fn raw_json<'a>(&self, json: &'a str) -> Cow<'a, str> {
        let Some(search) = self.set.search() else { return Cow::Borrowed(json) };
        // An escape that need not be written may hide a secret from the search.
        let may_hide = || {
            memchr::memmem::find(json.as_bytes(), br"\u").is_some()
                || memchr::memmem::find(json.as_bytes(), br"\/").is_some()
                // JSON in a string of JSON escapes what is escaped.
                || memchr::memmem::find(json.as_bytes(), br"\\").is_some()
        };
        if !search.machine.is_match(json) && !may_hide() {
            return Cow::Borrowed(json);
        }
        match serde_json::from_str::<Value>(json) {
            Ok(mut value) => {
                if search.json(&mut value) {
                    Cow::Owned(value.to_string())
                } else {
                    Cow::Borrowed(json)
                }
            }
            // What comes here was read as JSON before; anything else is not kept.
            Err(_) => Cow::Owned(format!("\"{MARK}\"")),
        }
    }

    /// A stream that is searched as a whole.
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream { redactor: self.clone(), held: Zeroizing::default() }
    }
}

/// A text that comes in pieces. What may be the beginning of a secret waits for the next piece.
#[derive(Debug)]
pub struct Stream {
    redactor: Redactor,
    held: Zeroizing<Vec<u8>>,
}

impl Stream {
    /// Takes a piece; what may be written now.
    pub fn push<'a>(&mut self, piece: &'a [u8]) -> Cow<'a, [u8]> {
        let Some(search) = self.redactor.set.search() else {
            if self.held.is_empty() {
                return Cow::Borrowed(piece);
            }
            self.held.extend_from_slice(piece);
            return Cow::Owned(std::mem::take(&mut *self.held));
        };
        let is_clean = self.held.is_empty()
            && search.open_end(piece) == piece.len()
            && !search.machine.is_match(piece);
        if is_clean {
            return Cow::Borrowed(piece);
        }
        self.held.extend_from_slice(piece);
        let whole = std::mem::take(&mut self.held);
        let open = search.open_end(&whole);
        let mut clean = Vec::with_capacity(open);
        let mut from = 0;
        for found in search.machine.find_iter(&*whole) {
            // Inside of what may become a longer one: it waits with it.
            if found.start() >= open {
                break;
            }
            clean.extend_from_slice(&whole[from..found.start()]);
            clean.extend_from_slice(MARK.as_bytes());
            from = found.end();
        }
        if from < open {
            clean.extend_from_slice(&whole[from..open]);
        }
        self.held.extend_from_slice(&whole[open.max(from)..]);
        Cow::Owned(clean)
    }

    /// The end of the stream: what still waited.
    pub fn finish(&mut self) -> Vec<u8> {
        let rest = std::mem::take(&mut self.held);
        self.redactor.bytes(&rest).into_owned()
    }

    /// Whether anything waits.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text.to_owned())
    }

    #[test]
    fn a_secret_is_crossed_out_for_as_long_as_somebody_holds_it() {
        let redactor = Redactor::default();
        let text = "key sk-12345678 and sk-12345678.";
        assert!(matches!(redactor.text(text), Cow::Borrowed(_)));
        let first = redactor.hold([secret("sk-12345678")]);
        let second = redactor.hold([secret("sk-12345678"), secret("short")]);
        drop(first);
        assert_eq!(redactor.text(text), "key [redacted] and [redacted].");
        assert_eq!(redactor.text("a short word"), "a short word");
        drop(second);
        assert_eq!(redactor.text(text), text);
    }

    #[test]
    fn every_way_to_write_it_in_json_is_found_and_json_stays_json() {
        let redactor = Redactor::default();
        let _lease = redactor.hold([secret("pa\"ss/word\n1"), secret("12345678")]);
        for (raw, clean) in [
            (r#"{"a":"x pa\"ss/word\n1 y"}"#, json!({"a": "x [redacted] y"})),
            (r#"{"a":"\u0070a\"ss\/word\n1"}"#, json!({"a": "[redacted]"})),
            (r#"{"a":[12345678,{"12345678":1}]}"#, json!({"a": ["[redacted]", {"[redacted]": 1}]})),
            (r#"{"url":"?k=pa%22ss%2Fword%0A1"}"#, json!({"url": "?k=[redacted]"})),
            // As JSON in a string of JSON.
            (r#"{"a":"{\"k\":\"pa\\\"ss/word\\n1\"}"}"#, json!({"a": "{\"k\":\"[redacted]\"}"})),
        ] {
            let told: Value = serde_json::from_str(&redactor.raw_json(raw)).unwrap();
            assert_eq!(told, clean, "{raw}");
        }
        let harmless = r#"{"a":"\u00e9 1234567"}"#;
        assert!(matches!(redactor.raw_json(harmless), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn a_stream_gives_the_same_however_it_is_cut(
            parts in proptest::collection::vec("(sk-1234|sk-12345678|5678|é|sk-|sk-1234abcdef)", 0..12),
            cuts in proptest::collection::vec(0_usize..60, 0..8),
        ) {
            let redactor = Redactor::default();
            let _lease = redactor.hold([secret("sk-12345678"), secret("sk-1234abcdefgh")]);
            let whole = parts.concat();
            let mut stream = redactor.stream();
            let mut clean = Vec::new();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(whole.len())).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            for pair in cuts.windows(2) {
                clean.extend_from_slice(&stream.push(&whole.as_bytes()[pair[0]..pair[1]]));
            }
            clean.extend(stream.finish());
            prop_assert_eq!(String::from_utf8(clean).unwrap(), redactor.text(&whole));
        }
    }
}
