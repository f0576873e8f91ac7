//! What the API serves, and how a path names it.

use crate::api::{GROUP, Kind, VERSION};

/// A served resource: a kind of record, or one of the flat, read-only ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// Stored records of a kind.
    Records(Kind),
    /// Reconcile reports.
    Reports,
    /// Manifest files.
    Manifests,
}

impl Resource {
    /// Everything that is served, in the order of discovery.
    pub const ALL: [Self; 10] = [
        Self::Records(Kind::Agent),
        Self::Records(Kind::Workspace),
        Self::Records(Kind::Role),
        Self::Records(Kind::Session),
        Self::Records(Kind::Turn),
        Self::Records(Kind::PermissionRequest),
        Self::Reports,
        Self::Manifests,
        Self::Records(Kind::Namespace),
        Self::Records(Kind::Event),
    ];

    /// The kind's name.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Records(kind) => kind.as_str(),
            Self::Reports => "ReconcileReport",
            Self::Manifests => "Manifest",
        }
    }

    /// As it stands in a URL.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Records(kind) => kind.plural(),
            Self::Reports => "reconcilereports",
            Self::Manifests => "manifests",
        }
    }

    /// One of them.
    #[must_use]
    pub const fn singular(self) -> &'static str {
        match self {
            Self::Records(kind) => kind.singular(),
            Self::Reports => "reconcilereport",
            Self::Manifests => "manifest",
        }
    }

    /// Short names for clients.
    #[must_use]
    pub const fn short_names(self) -> &'static [&'static str] {
        match self {
            Self::Records(kind) => kind.short_names(),
            Self::Reports => &["rr"],
            Self::Manifests => &["mf"],
        }
    }

    /// Whether it lives in a namespace.
    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        match self {
            Self::Records(kind) => kind.is_namespaced(),
            Self::Reports => true,
            Self::Manifests => false,
        }
    }

    /// `v1` or our group and version.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Records(kind) => kind.api_version(),
            Self::Reports | Self::Manifests => crate::api::API_VERSION,
        }
    }

    /// Whether it belongs to the core group.
    #[must_use]
    pub const fn is_core(self) -> bool {
        self.group().is_empty()
    }

    /// The group's name, empty for the core group.
    #[must_use]
    pub const fn group(self) -> &'static str {
        match self {
            Self::Records(kind) => kind.group(),
            Self::Reports | Self::Manifests => GROUP,
        }
    }

    /// `sessions.spawnlet.dev`, `namespaces`.
    #[must_use]
    pub fn qualified(self) -> String {
        with_group(self.plural(), self.group())
    }

    /// `Session.spawnlet.dev`, `Namespace`.
    #[must_use]
    pub fn qualified_kind(self) -> String {
        with_group(self.kind(), self.group())
    }

    /// The verbs that discovery tells.
    #[must_use]
    pub const fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Records(Kind::Event) => &["get", "list", "watch"],
            // The daemon makes them, and they go with their turn.
            Self::Records(Kind::PermissionRequest) => &["get", "list", "patch", "update", "watch"],
            Self::Records(_) => &["create", "delete", "get", "list", "patch", "update", "watch"],
            Self::Reports | Self::Manifests => &["list"],
        }
    }

    /// Group names for `get`: `all` and `spawnlet` show our records.
    #[must_use]
    pub const fn categories(self) -> &'static [&'static str] {
        match self {
            Self::Records(Kind::Event | Kind::Namespace) | Self::Reports | Self::Manifests => &[],
            Self::Records(_) => &["all", "spawnlet"],
        }
    }

    /// Whether users may write such objects.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        match self {
            Self::Records(Kind::Event) | Self::Reports | Self::Manifests => false,
            Self::Records(_) => true,
        }
    }

    /// Finds a resource by its plural in a group.
    #[must_use]
    pub fn by_plural(is_core: bool, plural: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|resource| resource.is_core() == is_core && resource.plural() == plural)
    }

    /// Finds a resource by kind, plural, singular or short name, in any case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let text = text.strip_suffix(".spawnlet.dev").unwrap_or(&text);
        Self::ALL.into_iter().find(|resource| {
            resource.plural() == text
                || resource.singular() == text
                || resource.short_names().contains(&text)
        })
    }
}

fn with_group(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `/healthz`, `/livez`.
    Alive,
    /// `/readyz`.
    Ready,
    /// `/version`.
    Version,
    /// `/secrets`.
    Secrets,
    /// `/secrets/providers/AGENT/SLOT`, by its name from `providers` on.
    Secret(String),
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/spawnlet.dev`.
    Group,
    /// `/api/v1` or `/apis/spawnlet.dev/v1alpha1`.
    Resources {
        /// Which of the two.
        is_core: bool,
    },
    /// All objects of a resource, in one namespace or in all.
    Collection {
        /// Of what.
        resource: Resource,
        /// Where; `None` for cluster kinds and for all namespaces.
        namespace: Option<String>,
    },
    /// One object.
    Item(Item),
}

/// One object, or something of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Of what.
    pub resource: Resource,
    /// Where; `None` for cluster kinds.
    pub namespace: Option<String>,
    /// Its name or uid.
    pub name: String,
    /// `status`, `transcript` and so on; `token/ID` for one token.
    pub subresource: Option<String>,
}

/// Reads a path; `None` if this API has no such path. A slash at the end does not count (Python's
/// client sends one).
#[must_use]
pub fn parse_path(path: &str) -> Option<Target> {
    let decoded =
        path.trim_matches('/').split('/').map(decode_segment).collect::<Option<Vec<String>>>()?;
    let segments: Vec<&str> = decoded.iter().map(String::as_str).collect();
    match segments.as_slice() {
        ["healthz" | "livez"] => Some(Target::Alive),
        ["readyz"] => Some(Target::Ready),
        ["version"] => Some(Target::Version),
        ["secrets"] => Some(Target::Secrets),
        ["secrets", "providers", agent, slot] => {
            Some(Target::Secret(format!("providers/{agent}/{slot}")))
        }
        ["api"] => Some(Target::CoreVersions),
        ["apis"] => Some(Target::Groups),
        ["apis", GROUP] => Some(Target::Group),
        ["api", "v1", rest @ ..] => resource_path(true, rest),
        ["apis", GROUP, VERSION, rest @ ..] => resource_path(false, rest),
        _ => None,
    }
}

fn resource_path(is_core: bool, rest: &[&str]) -> Option<Target> {
    match rest {
        [] => Some(Target::Resources { is_core }),
        // A namespace itself, or something of it.
        ["namespaces", name] if is_core => {
            item(Resource::Records(Kind::Namespace), None, name, None)
        }
        ["namespaces", name, "status"] if is_core => {
            item(Resource::Records(Kind::Namespace), None, name, Some("status"))
        }
        ["namespaces", namespace, plural, rest @ ..] => {
            let resource = namespaced(is_core, plural)?;
            below(resource, Some((*namespace).to_owned()), rest)
        }
        [plural, rest @ ..] => {
            let resource = Resource::by_plural(is_core, plural)?;
            // Without a namespace, namespaced objects can be listed but not named.
            if resource.is_namespaced() && !rest.is_empty() {
                return None;
            }
            below(resource, None, rest)
        }
    }
}

fn namespaced(is_core: bool, plural: &str) -> Option<Resource> {
    Resource::by_plural(is_core, plural).filter(|resource| resource.is_namespaced())
}

fn below(resource: Resource, namespace: Option<String>, rest: &[&str]) -> Option<Target> {
    match rest {
        [] => Some(Target::Collection { resource, namespace }),
        [name] => item(resource, namespace, name, None),
        [name, subresource] => item(resource, namespace, name, Some(subresource)),
        // The one that has something below it. No other path gives a subresource with a slash.
        [name, "token", id] if resource == Resource::Records(Kind::Session) && !id.is_empty() => {
            item(resource, namespace, name, Some(&format!("token/{id}")))
        }
        _ => None,
    }
}

fn item(
    resource: Resource,
    namespace: Option<String>,
    name: &str,
    subresource: Option<&str>,
) -> Option<Target> {
    if name.is_empty() || !matches!(resource, Resource::Records(_)) {
        return None;
    }
    let subresource = subresource.map(str::to_owned);
    Some(Target::Item(Item { resource, namespace, name: name.to_owned(), subresource }))
}

/// Percent-decodes one segment; `None` if it is malformed, no UTF-8, or hides a slash.
fn decode_segment(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let [high, low, tail @ ..] = tail else { return None };
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let byte = u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?;
            if byte == b'/' || byte == 0 {
                return None;
            }
            bytes.push(byte);
            rest = tail;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_collections_items_and_subresources() {
        let base = "/apis/spawnlet.dev/v1alpha1";
        assert_eq!(
            parse_path(&format!("{base}/namespaces/a/sessions")),
            Some(Target::Collection {
                resource: Resource::Records(Kind::Session),
                namespace: Some("a".to_owned())
            })
        );
        assert_eq!(
            parse_path(&format!("{base}/namespaces/a/sessions/b/transcript")),
            Some(Target::Item(Item {
                resource: Resource::Records(Kind::Session),
                namespace: Some("a".to_owned()),
                name: "b".to_owned(),
                subresource: Some("transcript".to_owned()),
            }))
        );
        assert_eq!(
            parse_path("/api/v1/namespaces/x"),
            Some(Target::Item(Item {
                resource: Resource::Records(Kind::Namespace),
                namespace: None,
                name: "x".to_owned(),
                subresource: None,
            }))
        );
        assert_eq!(parse_path("/apis/"), Some(Target::Groups));
        assert_eq!(parse_path(&format!("{base}/sessions/b")), None);
        assert_eq!(parse_path(&format!("{base}/namespaces/a/agents")), None);
        assert_eq!(parse_path(&format!("{base}/agents/a%2Fb")), None);
        assert_eq!(parse_path("/api/v1/pods"), None);
    }

    #[test]
    fn names_of_resources_are_found_in_every_form() {
        for text in ["se", "Session", "sessions", "sessions.spawnlet.dev"] {
            assert_eq!(Resource::parse(text), Some(Resource::Records(Kind::Session)), "{text}");
        }
        assert_eq!(Resource::parse("pods"), None);
    }
}
