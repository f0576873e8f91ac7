//! Manifest files of `apply` and `validate`: a file, a directory, or `-` for standard input.
//!
//! Read by the same code as the watched directory, with the same bounds and the same faults.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::failure::Failure;
use crate::api::Kind;
use crate::manifests::directory;
use crate::manifests::document::{Checked, check};
use crate::manifests::yaml::{self, Document, Error, FILE_BYTES_MAX, Format};

/// A document that is in order.
pub(super) struct Loaded {
    /// The file, as it is shown.
    pub(super) source: String,
    /// The document.
    pub(super) checked: Checked,
}

/// Loads every document of the given files. Documents without a namespace get `namespace`.
///
/// # Errors
///
/// `Data` with all faults, one a line: `file:line:column: field: what is wrong`.
pub(super) fn load(paths: &[PathBuf], namespace: &str) -> Result<Vec<Loaded>, Failure> {
    let (mut loaded, mut faults) = (Vec::new(), Vec::new());
    let mut count = 0;
    for path in paths {
        for (source, format, bytes) in texts(path)? {
            count += 1;
            match documents(&bytes, format, namespace) {
                Ok(checked) => loaded.extend(
                    checked.into_iter().map(|checked| Loaded { source: source.clone(), checked }),
                ),
                Err(errors) => {
                    faults.extend(errors.iter().map(|error| format!("{source}:{error}")));
                }
            }
        }
    }
    if !faults.is_empty() {
        return Err(Failure::Data(faults.join("\n")));
    }
    if count == 0 {
        return Err(Failure::Data("no *.yaml, *.yml or *.json file was found".to_owned()));
    }
    Ok(loaded)
}

/// The documents of one text. Those without a namespace get `namespace`.
pub(super) fn documents(
    bytes: &[u8],
    format: Format,
    namespace: &str,
) -> Result<Vec<Checked>, Vec<Error>> {
    let documents = yaml::parse_documents(bytes, format).map_err(|fault| vec![fault])?;
    let (mut checked, mut faults) = (Vec::new(), Vec::new());
    for mut document in documents {
        fill_namespace(&mut document, namespace);
        match check(document) {
            Ok(one) => checked.push(one),
            Err(mut more) => faults.append(&mut more),
        }
    }
    if faults.is_empty() { Ok(checked) } else { Err(faults) }
}

fn fill_namespace(document: &mut Document, namespace: &str) {
    let kind = document.value.get("kind").and_then(Value::as_str).and_then(Kind::parse);
    if !kind.is_some_and(Kind::is_namespaced) {
        return;
    }
    if let Some(metadata) = document.value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.entry("namespace").or_insert_with(|| json!(namespace));
    }
}

/// The texts behind a path.
fn texts(path: &Path) -> Result<Vec<(String, Format, Vec<u8>)>, Failure> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        let limit = FILE_BYTES_MAX as u64 + 1;
        std::io::stdin()
            .take(limit)
            .read_to_end(&mut bytes)
            .map_err(|error| Failure::Data(format!("standard input cannot be read: {error}")))?;
        return Ok(vec![("-".to_owned(), Format::of_text(&bytes), bytes)]);
    }
    let shown = path.display().to_string();
    let metadata = std::fs::metadata(path)
        .map_err(|error| Failure::Data(format!("{shown}: {}", directory::reason(&error))))?;
    if !metadata.is_dir() {
        let (root, name) = (
            path.parent().unwrap_or(Path::new("")),
            path.file_name().unwrap_or_default().to_string_lossy(),
        );
        return Ok(vec![(shown, Format::of_path(path), read(root, &name)?)]);
    }
    let listing = directory::list(path)
        .map_err(|error| Failure::Data(format!("{shown}: {}", directory::reason(&error))))?;
    if let Some(gap) = listing.gaps.first() {
        return Err(Failure::Data(format!("{shown}: {gap}")));
    }
    let mut texts = Vec::new();
    for name in listing.files.keys() {
        let file = path.join(name);
        texts.push((file.display().to_string(), Format::of_path(&file), read(path, name)?));
    }
    Ok(texts)
}

fn read(root: &Path, name: &str) -> Result<Vec<u8>, Failure> {
    let shown = root.join(name);
    match directory::read(root, name) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(Failure::Data(format!("{}: it is gone", shown.display()))),
        Err(why) => Err(Failure::Data(format!("{}: {why}", shown.display()))),
    }
}
