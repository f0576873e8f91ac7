//! What the documents say of the sources is still so.

use std::collections::BTreeSet;
use std::path::Path;

use crate::root;
use crate::source::Tree;

/// The documents that speak of the sources.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "DESIGN.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs/README.md",
    "docs/testing.md",
    "docs/known-failures.md",
];
/// Where paths of the repository begin.
const ROOTS: &[&str] = &["src/", "tests/", "scripts/", "docs/", "examples/", "crds-like-specs/"];

/// What stands between single backticks.
fn quoted(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// Paths that are named and not there.
fn missing_paths(text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let is_path = |name: &&str| {
        ROOTS.iter().any(|root| name.starts_with(root)) && !name.contains(['*', '<', '{', ' '])
    };
    quoted(text)
        .into_iter()
        .filter(is_path)
        .filter(|path| !exists(path))
        .map(str::to_owned)
        .collect()
}

/// Tests that are named and not there: a name of a test has four words or more.
fn missing_tests(text: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let is_test = |name: &&str| {
        name.matches('_').count() >= 3
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    quoted(text)
        .into_iter()
        .filter(is_test)
        .filter(|name| !tests.contains(*name))
        .map(str::to_owned)
        .collect()
}

/// All functions: the cases of the store's conformance suite are no `#[test]`s.
fn tests() -> BTreeSet<String> {
    let tree = Tree::read(root());
    let names = |code: &str| -> Vec<String> {
        let name = |rest: &str| rest.split(['(', '<']).next().unwrap_or("").trim().to_owned();
        code.split("fn ").skip(1).map(name).collect()
    };
    let all = |source: &crate::source::Source| [names(&source.code), names(&source.test_code)];
    tree.sources.iter().flat_map(all).flatten().collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn documents_name_only_files_and_tests_that_exist() {
    let tests = tests();
    let mut found = Vec::new();
    for document in DOCUMENTS {
        let text = read(document);
        let exists = |path: &str| root().join(path).exists();
        found
            .extend(missing_paths(&text, exists).into_iter().map(|it| format!("{document}: {it}")));
        found
            .extend(missing_tests(&text, &tests).into_iter().map(|it| format!("{document}: {it}")));
    }
    assert!(found.is_empty(), "named and not there:\n{}", found.join("\n"));
}

#[test]
fn a_stale_name_in_a_document_is_found() {
    let text =
        "`src/gone.rs` and `a_test_that_never_was`, `src/*` and `two_words`\n```\n`src/x`\n```";
    assert_eq!(missing_paths(text, |_| false), ["src/gone.rs"]);
    assert_eq!(missing_tests(text, &BTreeSet::new()), ["a_test_that_never_was"]);
    assert_eq!(unnamed(&["src/b/mod.rs", "src/a.rs"], "| `a.rs` |"), ["src/b"]);
}

/// Modules that the map does not name, each as `name.rs` or `name/`.
fn unnamed(paths: &[&str], map: &str) -> Vec<String> {
    let named: BTreeSet<&str> = quoted(map).into_iter().collect();
    let mut missing = BTreeSet::new();
    for path in paths {
        let inner = path.trim_start_matches("src/");
        let (top, is_file) = match inner.split_once('/') {
            Some((directory, _)) => (format!("{directory}/"), false),
            None => (inner.to_owned(), true),
        };
        if !named.contains(top.as_str()) {
            missing
                .insert(format!("src/{}", if is_file { &top } else { top.trim_end_matches('/') }));
        }
    }
    missing.into_iter().collect()
}

#[test]
fn the_map_names_every_module() {
    let tree = Tree::read(root());
    let paths: Vec<&str> = tree
        .sources
        .iter()
        .filter(|source| source.path.starts_with("src/") && !source.is_test())
        .map(|source| source.path.as_str())
        .collect();
    let map = read("ARCHITECTURE.md");
    assert_eq!(unnamed(&paths, &map), Vec::<String>::new(), "not in ARCHITECTURE.md");
    // The loop is the part that a reader needs a map of most: there each file has its line.
    for part in ["src/plan", "src/controller", "src/server"] {
        for path in paths.iter().filter(|path| path.starts_with(&format!("{part}/"))) {
            let name = path.rsplit('/').next().unwrap_or(path);
            let is_named = quoted(&map)
                .iter()
                .any(|quoted| *quoted == name || path.ends_with(&format!("/{quoted}")));
            assert!(is_named || name == "mod.rs", "{path} is not in ARCHITECTURE.md");
        }
    }
}

#[test]
fn every_script_is_told_of() {
    let told = read("docs/testing.md") + &read("README.md");
    for entry in std::fs::read_dir(root().join("scripts")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let name = format!("scripts/{}", path.file_name().unwrap().to_str().unwrap());
            assert!(told.contains(&name), "{name} is in no document");
        }
    }
    assert!(Path::new(&root().join(".ci/run")).exists());
}
