//! The one YAML and JSON parser of the program: bytes in, documents with places out.
//!
//! The grammar is `saphyr-parser`'s, a YAML 1.2 event parser without `unsafe`. Its events carry
//! positions, so that every later fault of a document is told with line and column; and they come
//! one by one, so that the bounds below stop a bomb while it is being read, not afterwards. Plain
//! scalars are resolved by the YAML 1.2 core schema: `no` is a string.
//!
//! Invariants: no input makes this panic, recurse beyond [`DEPTH_MAX`] or hold more than
//! [`EXPANDED_BYTES_MAX`] of text; what stands twice in a mapping is a fault, never the last wins.
//!
//! Absent on purpose: expansion of variables, merge keys (YAML 1.1), tags of an application, and
//! everything that knows records. The CLI uses this module too.

mod json;
mod scalar;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The largest file. A record is at most 256 KiB too, so a larger file can only hold many.
pub const FILE_BYTES_MAX: usize = 256 * 1024;
/// The deepest nesting; the deepest record of ours has seven levels.
pub const DEPTH_MAX: usize = 32;
/// The most nodes of a file, keys and what aliases stand for included.
pub const NODES_MAX: usize = 10_000;
/// The most aliases of a file.
pub const ALIASES_MAX: usize = 100;
/// The most text that aliases may blow a file up to: four times the largest file.
pub const EXPANDED_BYTES_MAX: usize = 4 * FILE_BYTES_MAX;

/// A position in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
}

impl Place {
    /// Where a file begins.
    pub const START: Self = Self { line: 1, column: 1 };
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A fault of a file: `line:column: field: what is wrong, what was expected`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Error {
    /// Where.
    pub place: Place,
    /// In which field, `spec.folders[0].path`; empty for the document itself.
    pub field: String,
    /// What is wrong and what was expected.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Where every field of a document stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    key: Place,
    value: Place,
    children: BTreeMap<String, Places>,
}

impl Places {
    fn at(key: Place, value: Place) -> Self {
        Self { key, value, children: BTreeMap::new() }
    }

    /// Where the document begins.
    #[must_use]
    pub const fn start(&self) -> Place {
        self.value
    }

    /// Where the value of a field stands, or of the nearest field above it that is in the file.
    #[must_use]
    pub fn value_of(&self, path: &str) -> Place {
        self.find(path).value
    }

    /// Where the name of a field stands, or of the nearest field above it that is in the file.
    #[must_use]
    pub fn name_of(&self, path: &str) -> Place {
        self.find(path).key
    }

    /// Walks down the path. Names may hold dots (labels do), so the longest child that the path
    /// goes on with is taken.
    fn find(&self, path: &str) -> &Self {
        let mut here = self;
        let mut rest = path;
        while !rest.is_empty() {
            let next = here
                .children
                .iter()
                .filter(|(name, _)| {
                    rest.strip_prefix(name.as_str())
                        .is_some_and(|tail| tail.is_empty() || tail.starts_with(['.', '[']))
                })
                .max_by_key(|(name, _)| name.len());
            let Some((name, child)) = next else { break };
            rest = &rest[name.len()..];
            rest = rest.strip_prefix('.').unwrap_or(rest);
            here = child;
        }
        here
    }
}

/// One document of a file.
#[derive(Clone, PartialEq, Debug)]
pub struct Document {
    /// What it says.
    pub value: Value,
    /// Where it says it.
    pub places: Places,
}

impl Document {
    /// A fault of this document, placed where the field's value stands.
    #[must_use]
    pub fn fault(&self, field: &str, message: impl Into<String>) -> Error {
        Error {
            place: self.places.value_of(field),
            field: field.to_owned(),
            message: message.into(),
        }
    }
}

/// How a file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// YAML 1.2.
    Yaml,
    /// JSON.
    Json,
}

impl Format {
    /// By the file's name; `.json` is JSON, everything else YAML.
    #[must_use]
    pub fn of_path(path: &Path) -> Self {
        match path.extension() {
            Some(extension) if extension.eq_ignore_ascii_case("json") => Self::Json,
            _ => Self::Yaml,
        }
    }

    /// By how it begins, for standard input: a brace and a quoted key are nearly always JSON that some
    /// program wrote. Several documents are YAML's: all JSON is YAML too.
    #[must_use]
    pub fn of_text(bytes: &[u8]) -> Self {
        let mut begin = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
        let is_one = !bytes.windows(4).any(|window| window == b"\n---");
        match (begin.next(), begin.next()) {
            (Some(b'{'), Some(b'"' | b'}') | None) if is_one => Self::Json,
            _ => Self::Yaml,
        }
    }
}

/// Reads all documents of a file. Empty ones (only comments) are left out.
///
/// # Errors
///
/// The first fault: not UTF-8, over a bound, broken syntax, a key that stands twice, a value that
/// JSON cannot say.
pub fn parse_documents(bytes: &[u8], format: Format) -> Result<Vec<Document>, Error> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(at_start(format!(
            "the file has {} bytes, expected at most {FILE_BYTES_MAX}",
            bytes.len()
        )));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| Error {
        place: place_of_byte(bytes, error.valid_up_to()),
        field: String::new(),
        message: "the file is not UTF-8 here, expected UTF-8 text".to_owned(),
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // A parser's own fault must cost this file alone, not the whole look at its directory.
    let parsed = std::panic::catch_unwind(|| match format {
        Format::Yaml => tree::parse(text),
        Format::Json => json::parse(text),
    });
    parsed.unwrap_or_else(|_| {
        Err(at_start("the parser failed on this file, expected simpler YAML".to_owned()))
    })
}

/// Reads a configuration file: one document, every field known.
///
/// # Errors
///
/// Every unknown field, or the first other fault. An empty file is an empty configuration.
pub fn decode_config<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Vec<Error>> {
    let mut documents =
        parse_documents(bytes, Format::of_text(bytes)).map_err(|fault| vec![fault])?;
    if let Some(second) = documents.get(1) {
        let place = second.places.start();
        let message = "a second document, expected one document".to_owned();
        return Err(vec![Error { place, field: String::new(), message }]);
    }
    let document = documents.pop().unwrap_or_else(|| Document {
        value: Value::Object(serde_json::Map::new()),
        places: Places::at(Place::START, Place::START),
    });
    decode(&document)
}

/// Reads a value of `T` out of a document and refuses fields that `T` does not have.
///
/// # Errors
///
/// Every unknown field, or the first value of a wrong type.
pub fn decode<T: DeserializeOwned>(document: &Document) -> Result<T, Vec<Error>> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&document.value, &mut track);
    let decoded = serde_ignored::deserialize(tracked, |path| unknown.push(ignored_path(&path)));
    match decoded {
        Ok(_) if !unknown.is_empty() => Err(unknown
            .into_iter()
            .map(|field| Error {
                place: document.places.name_of(&field),
                field,
                message: "unknown field, expected a field of this kind".to_owned(),
            })
            .collect()),
        Ok(value) => Ok(value),
        Err(error) => {
            let path = track.path().to_string();
            let field = if path == "." { "" } else { path.as_str() };
            Err(vec![document.fault(field, error.to_string())])
        }
    }
}

/// Writes a path as [`crate::api::FieldPath`] does: `serde_ignored` writes `.0` for `[0]`, and `?`
/// for the inside of an option.
fn ignored_path(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", ignored_path(parent)),
        Path::Map { parent, key } => {
            let parent = ignored_path(parent);
            if parent.is_empty() { key.clone() } else { format!("{parent}.{key}") }
        }
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => ignored_path(parent),
    }
}

/// Joins names as [`crate::api::FieldPath`] does: `spec`, `folders`, `[0]` -> `spec.folders[0]`.
fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut path = String::new();
    for name in names.filter(|name| !name.is_empty()) {
        if !path.is_empty() && !name.starts_with('[') {
            path.push('.');
        }
        path.push_str(name);
    }
    path
}

fn at_start(message: String) -> Error {
    Error { place: Place::START, field: String::new(), message }
}

fn place_of_byte(bytes: &[u8], index: usize) -> Place {
    let before = &bytes[..index.min(bytes.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    // Bytes that go on a character (10xxxxxx) are no characters of their own.
    let characters = before[line_start..].iter().filter(|byte| **byte & 0xC0 != 0x80).count();
    Place { line, column: characters + 1 }
}

#[cfg(test)]
mod tests;
