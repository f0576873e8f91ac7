//! Sources as the rules see them: code without comments, strings apart, tests known as tests.
//!
//! A lexer for what matters here, no parser: comments and literals are taken out so that a word in
//! a doc comment is no violation, and items under `#[cfg(test)]` are taken apart from the rest.

use std::path::Path;

/// One Rust file.
pub(crate) struct Source {
    /// From the repository's root, with `/`.
    pub(crate) path: String,
    /// As it stands.
    pub(crate) text: String,
    /// Comments and literals blanked; what belongs to tests blanked too.
    pub(crate) code: String,
    /// Comments and literals blanked; only what belongs to tests.
    pub(crate) test_code: String,
    /// The string literals outside of tests, each with its line.
    pub(crate) strings: Vec<(usize, String)>,
}

impl Source {
    /// The top-level module of the library, the shim or the program that the file is of.
    pub(crate) fn module(&self) -> &str {
        let inner = self.path.strip_prefix("src/").unwrap_or("");
        inner.split('/').next().unwrap_or("").trim_end_matches(".rs")
    }

    /// Its place below the crate's root: 1 for `src/a.rs` and `src/a/mod.rs`.
    pub(crate) fn depth(&self) -> usize {
        let parts = self.path.split('/').count() - 1;
        if self.path.ends_with("/mod.rs") { parts - 1 } else { parts }
    }

    /// Whether all of it is test code.
    pub(crate) fn is_test(&self) -> bool {
        self.code.trim().is_empty()
    }
}

/// All files, tests marked as such.
pub(crate) struct Tree {
    pub(crate) sources: Vec<Source>,
}

impl Tree {
    /// Reads the Rust files of `src/`, `tests/` and `examples/`.
    pub(crate) fn read(root: &Path) -> Self {
        let mut files = Vec::new();
        for directory in ["src", "tests", "examples"] {
            collect(root, &root.join(directory), &mut files);
        }
        files.sort();
        Self::of(files)
    }

    /// Made-up files, or read ones.
    pub(crate) fn of(files: Vec<(String, String)>) -> Self {
        let lexed: Vec<_> =
            files.into_iter().map(|(path, text)| (path, lex(&text), text)).collect();
        let mut test_files = Vec::new();
        for (path, lexed, _) in &lexed {
            for item in test_items(&lexed.code) {
                test_files.extend(module_files(path, &lexed.code[item]));
            }
        }
        let is_test = |path: &str| {
            // What plays an agent in the tests is a program: its code is not a test's.
            let is_agent = path.starts_with("tests/fakeagent/");
            (path.starts_with("tests/") && !is_agent)
                || test_files.iter().any(|file| {
                    path == format!("{file}.rs") || path.starts_with(&format!("{file}/"))
                })
        };
        let sources = lexed
            .into_iter()
            .map(|(path, lexed, text)| {
                let mut code = lexed.code.clone();
                let mut test_code = blank(&lexed.code, 0..lexed.code.len());
                let items = if is_test(&path) {
                    std::iter::once(0..lexed.code.len()).collect()
                } else {
                    test_items(&lexed.code)
                };
                for item in &items {
                    test_code.replace_range(item.clone(), &lexed.code[item.clone()]);
                    code = blank(&code, item.clone());
                }
                let strings = lexed
                    .strings
                    .into_iter()
                    .filter(|(at, _)| !items.iter().any(|item| item.contains(at)))
                    .map(|(at, string)| (line_of(&text, at), string))
                    .collect();
                Source { path, text, code, test_code, strings }
            })
            .collect();
        Self { sources }
    }
}

fn collect(root: &Path, directory: &Path, files: &mut Vec<(String, String)>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
            files.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The line of a byte, from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

struct Lexed {
    /// As long as the text, byte for byte.
    code: String,
    strings: Vec<(usize, String)>,
}

/// Takes comments, strings and characters out.
fn lex(text: &str) -> Lexed {
    let bytes = text.as_bytes();
    let mut out = text.as_bytes().to_vec();
    let mut strings = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let before = at.checked_sub(1).map_or(b' ', |before| bytes[before]);
        let end = if rest.starts_with(b"//") {
            at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            block_comment(bytes, at)
        } else if rest[0] == b'"' {
            quoted(bytes, at)
        } else if rest[0] == b'r' && !is_word(before) && raw_hashes(rest).is_some() {
            raw(bytes, at, raw_hashes(rest).unwrap_or(0))
        } else if rest[0] == b'\'' {
            character(bytes, at)
        } else {
            at + 1
        };
        if end > at + 1 {
            if matches!(rest[0], b'"' | b'r') {
                strings.push((at, text[at..end].to_owned()));
            }
            for byte in &mut out[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        at = end;
    }
    // What was blanked are whole characters, so the rest is whole too.
    Lexed { code: String::from_utf8(out).unwrap(), strings }
}

fn block_comment(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut level) = (start, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            level += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            level -= 1;
            at += 2;
            if level == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn quoted(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn raw_hashes(rest: &[u8]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    (rest.get(1 + hashes) == Some(&b'"')).then_some(hashes)
}

fn raw(bytes: &[u8], start: usize, hashes: usize) -> usize {
    let close = format!("\"{}", "#".repeat(hashes));
    let body = start + 2 + hashes;
    let found = bytes[body..].windows(close.len()).position(|part| part == close.as_bytes());
    found.map_or(bytes.len(), |found| body + found + close.len())
}

/// The end of a character literal, or the next byte if the quote is a lifetime's.
fn character(bytes: &[u8], start: usize) -> usize {
    match bytes.get(start + 1) {
        Some(b'\\') => {
            let from = start + 3;
            let close = bytes[from.min(bytes.len())..].iter().position(|byte| *byte == b'\'');
            close.map_or(bytes.len(), |close| from + close + 1)
        }
        Some(_) => {
            let first = std::str::from_utf8(&bytes[start + 1..(start + 5).min(bytes.len())])
                .map_or_else(|error| error.valid_up_to(), str::len);
            let width = std::str::from_utf8(&bytes[start + 1..start + 1 + first])
                .ok()
                .and_then(|text| text.chars().next())
                .map_or(1, char::len_utf8);
            let close = start + 1 + width;
            if bytes.get(close) == Some(&b'\'') { close + 1 } else { start + 1 }
        }
        None => start + 1,
    }
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn blank(code: &str, range: std::ops::Range<usize>) -> String {
    let mut bytes = code.as_bytes().to_vec();
    for byte in &mut bytes[range] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// The items that `#[cfg(test)]` stands before, attribute included.
fn test_items(code: &str) -> Vec<std::ops::Range<usize>> {
    let mut items: Vec<std::ops::Range<usize>> = Vec::new();
    for (start, attribute) in code.match_indices("#[cfg(test)]") {
        if items.last().is_some_and(|last| last.contains(&start)) {
            continue;
        }
        let mut depth = 0_usize;
        let mut end = code.len();
        for (at, byte) in code.bytes().enumerate().skip(start + attribute.len()) {
            match byte {
                b'{' | b'(' | b'[' => depth += 1,
                // The end of what holds the item ends a field or an arm.
                b'}' | b')' | b']' if depth == 0 => {
                    end = at;
                    break;
                }
                b'}' | b')' | b']' => {
                    depth -= 1;
                    if depth == 0 && byte == b'}' {
                        end = at + 1;
                        break;
                    }
                }
                b';' | b',' if depth == 0 => {
                    end = at + 1;
                    break;
                }
                _ => {}
            }
        }
        items.push(start..end);
    }
    items
}

/// The files (without `.rs`) of the module that an item `mod name;` declares.
fn module_files(path: &str, item: &str) -> Option<String> {
    let words: Vec<&str> = item.trim_end().strip_suffix(';')?.split_whitespace().collect();
    let [.., "mod", name] = words.as_slice() else { return None };
    let directory = match path.strip_suffix("/mod.rs") {
        Some(directory) => directory,
        None => path.strip_suffix(".rs")?,
    };
    Some(format!("{directory}/{name}"))
}
