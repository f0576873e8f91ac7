//! Reads the sources and holds the invariants of `ARCHITECTURE.md`.
//!
//! Each rule is a function from the sources to what breaks it, and carries made-up sources that it
//! must find fault with: its negative control. A rule that no longer bites fails here.

#![allow(clippy::unwrap_used, reason = "all of it is a test: what cannot be read fails it")]

mod checks;
mod documents;
mod licences;
mod rules;
mod source;

use std::path::Path;

use rules::RULES;
use source::Tree;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_sources_keep_the_invariants_of_the_architecture() {
    let tree = Tree::read(root());
    assert!(tree.sources.len() > 100, "only {} sources were found", tree.sources.len());
    let found: Vec<String> = RULES
        .iter()
        .flat_map(|rule| (rule.check)(&tree).into_iter().map(|at| format!("{}: {at}", rule.name)))
        .collect();
    assert!(found.is_empty(), "{} violations:\n{}", found.len(), found.join("\n"));
}

/// The conditions of the contract, but for those of kinds that are not there yet.
#[test]
fn every_condition_of_the_contract_is_set_somewhere() {
    let names = "ScopeResolved AgentResolved ProcessReady SessionReady ConfigApplied Progressing \
                 Stalled ManagedByManifest AdditionalDirectoriesUnsupported DelegationUnavailable \
                 PermissionsNotEnforced SandboxApplied StdoutNoise ActivityAfterTurn WakeSuppressed \
                 MemoryLost KillUnconfirmed ReconcileStalled Available AuthRequired CrashLooping \
                 Applied StoreAvailable DiskPressure ClockSteady WatchNative";
    let tree = Tree::read(root());
    let is_named = |name: &str| {
        let sources = tree.sources.iter().filter(|source| source.path.starts_with("src/"));
        sources
            .filter(|source| !source.is_test())
            .any(|source| source.strings.iter().any(|(_, text)| text.trim_matches('"') == name))
    };
    let missing: Vec<&str> = names.split_whitespace().filter(|name| !is_named(name)).collect();
    assert!(missing.is_empty(), "nothing sets {missing:?}");
    assert!(!is_named("NoSuchCondition"));
}

#[test]
fn every_rule_finds_fault_with_a_source_that_breaks_it() {
    for rule in RULES {
        assert!(!rule.breaks.is_empty(), "{} has no negative control", rule.name);
        for (path, text) in rule.breaks {
            let tree = Tree::of(vec![((*path).to_owned(), (*text).to_owned())]);
            assert!(!(rule.check)(&tree).is_empty(), "{} does not see {path}: {text}", rule.name);
        }
        for (path, text) in rule.keeps {
            let tree = Tree::of(vec![((*path).to_owned(), (*text).to_owned())]);
            let found = (rule.check)(&tree);
            assert!(found.is_empty(), "{} is wrong about {path}: {found:?}", rule.name);
        }
    }
}

#[test]
fn comments_strings_and_test_items_are_no_code() {
    let text = "//! unsafe\nlet a = \"unsafe\"; /* unsafe /* unsafe */ */\nlet b = r#\"unsafe\"#;\n\
                let c = '\"'; fn f<'a>() {}\n#[cfg(test)]\nmod tests {\n    fn g() { unsafe {} }\n}\n";
    let tree = Tree::of(vec![("src/api/x.rs".into(), text.into())]);
    let source = &tree.sources[0];
    assert!(!source.code.contains("unsafe"), "{}", source.code);
    assert!(source.code.contains("fn f<'a>() {}"), "{}", source.code);
    assert_eq!(source.test_code.matches("unsafe").count(), 1);
    assert_eq!(source.strings.len(), 2);
    assert_eq!(source.code.len(), text.len());
}

#[test]
fn a_file_that_only_tests_declare_is_a_test() {
    let tree = Tree::of(vec![
        ("src/plan/mod.rs".into(), "#[cfg(test)]\npub(crate) mod model;\nmod real;\n".into()),
        ("src/plan/model.rs".into(), "fn f() {}".into()),
        ("src/plan/real.rs".into(), "fn f() {}".into()),
        ("src/store/x.rs".into(), "#[cfg(test)]\nmod tests;\n".into()),
        ("src/store/x/tests.rs".into(), "fn f() {}".into()),
    ]);
    let tests: Vec<bool> = tree.sources.iter().map(source::Source::is_test).collect();
    assert_eq!(tests, [false, true, false, true, true]);
}
