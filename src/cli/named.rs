//! Names on the command line: as they are, or with the kind before them, as `-o name` prints them.

use super::failure::Failure;
use crate::api::Kind;
use crate::rest::resource::Resource;

/// An empty name is a variable that was not set, and nobody's name.
pub(super) fn expect_name(resource: Resource, given: &str) -> Result<(), Failure> {
    if !given.is_empty() {
        return Ok(());
    }
    let kind = resource.singular();
    Err(Failure::Usage(format!("the name of a {kind} is empty; which one is meant?")))
}

/// The name in `NAME` or `KIND/NAME`, where only one kind makes sense.
///
/// # Errors
///
/// Another kind, or no name; it says what was expected.
pub(super) fn name_of(kind: Kind, given: &str) -> Result<&str, Failure> {
    expect_name(Resource::Records(kind), given)?;
    // No name, uid or id of ours has a slash in it.
    let Some((prefix, name)) = given.split_once('/') else { return Ok(given) };
    match Resource::parse(prefix) {
        Some(Resource::Records(found))
            if found == kind && !name.is_empty() && !name.contains('/') =>
        {
            Ok(name)
        }
        _ => {
            let kind = Resource::Records(kind).singular();
            Err(Failure::Usage(format!("{given}: expected a {kind}, as NAME or {kind}/NAME")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_its_kind_before_it_and_no_other() {
        for given in ["a", "session/a", "sessions/a", "se/a", "Session/a"] {
            assert_eq!(name_of(Kind::Session, given).unwrap(), "a", "{given}");
        }
        assert_eq!(name_of(Kind::Session, "").unwrap_err().exit_code(), 2);
        for given in ["turn/a", "session/", "session/a/b", "/a", "pod/a"] {
            let failure = name_of(Kind::Session, given).unwrap_err();
            assert_eq!(failure.exit_code(), 2, "{given}");
            assert!(failure.to_string().ends_with("NAME or session/NAME"), "{failure}");
        }
    }
}
