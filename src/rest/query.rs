//! Query parameters. Unknown keys and empty pairs are ignored (clients send both).

use axum::extract::Query as AxumQuery;
use axum::http::Uri;

use super::status::Failure;

/// The decoded pairs of a query.
#[derive(Clone, Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a URI's query.
    ///
    /// # Errors
    ///
    /// 400 if it is no form encoding.
    pub(super) fn of(uri: &Uri) -> Result<Self, Failure> {
        AxumQuery::<Vec<(String, String)>>::try_from_uri(uri)
            .map(|AxumQuery(pairs)| Self(pairs))
            .map_err(|error| Failure::bad_request(format!("the query cannot be read: {error}")))
    }

    /// The first value of a key; empty ones do not count.
    #[must_use]
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(name, value)| name == key && !value.is_empty())?;
        Some(value)
    }

    /// Whether the key stands there at all.
    #[must_use]
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }

    /// A boolean, false if absent.
    ///
    /// # Errors
    ///
    /// 400 if it is none.
    pub(super) fn bool(&self, key: &str) -> Result<bool, Failure> {
        match self.get(key) {
            None => Ok(false),
            Some("1" | "t" | "true" | "True" | "TRUE") => Ok(true),
            Some("0" | "f" | "false" | "False" | "FALSE") => Ok(false),
            Some(value) => {
                Err(Failure::bad_request(format!("query {key}={value}: expected true or false")))
            }
        }
    }

    /// A whole number.
    ///
    /// # Errors
    ///
    /// 400 if it is none.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, Failure> {
        self.get(key)
            .map(|value| {
                value.parse().map_err(|_| {
                    Failure::bad_request(format!("query {key}={value}: expected a whole number"))
                })
            })
            .transpose()
    }

    /// Whether `dryRun=All` was asked for.
    ///
    /// # Errors
    ///
    /// 400 for another value.
    pub(super) fn is_dry_run(&self) -> Result<bool, Failure> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(value) => Err(Failure::bad_request(format!("query dryRun={value}: expected All"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_pairs_are_ignored_and_wrong_values_are_named() {
        let query = Query::of(&"/x?&limit=500&watch=true&a=".parse().unwrap()).unwrap();
        assert_eq!(query.number("limit").unwrap(), Some(500));
        assert!(query.bool("watch").unwrap());
        assert_eq!(query.get("a"), None);
        assert!(query.has("a"));
        let query = Query::of(&"/x?watch=perhaps&dryRun=Some".parse().unwrap()).unwrap();
        assert!(query.bool("watch").unwrap_err().message().contains("watch=perhaps"));
        assert!(query.is_dry_run().is_err());
    }
}
