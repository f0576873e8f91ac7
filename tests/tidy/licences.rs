//! Every dependency has a licence that `deny.toml` allows.
//!
//! `cargo deny` says the same and more where it is installed; this needs nothing but cargo.

use std::collections::BTreeSet;
use std::process::Command;

use crate::root;

/// The strings of the list `allow = [...]` in a `[licenses]` section.
fn allowed(deny: &str) -> BTreeSet<String> {
    let section = deny.split("[licenses]").nth(1).unwrap_or("");
    let list = section.split("allow = [").nth(1).unwrap_or("").split(']').next().unwrap_or("");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether a licence expression can be met: one side of each OR, both of each AND. SPDX: AND binds
/// more tightly than OR; the older `/` means OR.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let expression = expression.replace('/', " OR ");
    let mut tokens = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .split_whitespace()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    tokens.reverse();
    any(&mut tokens, allowed) && tokens.is_empty()
}

fn any(tokens: &mut Vec<String>, allowed: &BTreeSet<String>) -> bool {
    let mut met = all(tokens, allowed);
    while tokens.last().is_some_and(|token| token == "OR") {
        tokens.pop();
        met |= all(tokens, allowed);
    }
    met
}

fn all(tokens: &mut Vec<String>, allowed: &BTreeSet<String>) -> bool {
    let mut met = one(tokens, allowed);
    while tokens.last().is_some_and(|token| token == "AND") {
        tokens.pop();
        met &= one(tokens, allowed);
    }
    met
}

fn one(tokens: &mut Vec<String>, allowed: &BTreeSet<String>) -> bool {
    let Some(token) = tokens.pop() else { return false };
    if token == "(" {
        let met = any(tokens, allowed);
        return tokens.pop().as_deref() == Some(")") && met;
    }
    if tokens.last().is_some_and(|token| token == "WITH") {
        tokens.pop();
        let exception = tokens.pop().unwrap_or_default();
        return allowed.contains(&format!("{token} WITH {exception}"));
    }
    allowed.contains(&token)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "cargo alone knows the licences of what it builds")]
fn every_dependency_has_an_allowed_licence() {
    let allowed = allowed(&std::fs::read_to_string(root().join("deny.toml")).unwrap());
    assert!(allowed.contains("Apache-2.0"), "{allowed:?}");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "{} packages", packages.len());
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !is_met(package["license"].as_str().unwrap_or(""), &allowed))
        .map(|package| format!("{} {}", package["name"], package["license"]))
        .collect();
    assert!(refused.is_empty(), "not in deny.toml:\n{}", refused.join("\n"));
}

#[test]
fn a_licence_that_is_not_allowed_is_refused() {
    let allowed = allowed(
        "[licenses]\nallow = [\n  \"MIT\",\n  \"Apache-2.0 WITH LLVM-exception\", \"A\",\n]\n",
    );
    for good in ["MIT", "GPL-3.0 OR MIT", "MIT/GPL-3.0", "(GPL-3.0 OR A) AND MIT"] {
        assert!(is_met(good, &allowed), "{good}");
    }
    assert!(is_met("GPL-3.0 OR Apache-2.0 WITH LLVM-exception OR X", &allowed));
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "GPL-3.0 OR", "A WITH MIT", "(MIT", "MIT GPL-3.0"]
    {
        assert!(!is_met(bad, &allowed), "{bad}");
    }
}
