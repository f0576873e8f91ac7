//! Discovery: what clients ask before they ask for anything.
//!
//! Both forms, the old lists and the aggregated one, chosen by the Accept header. An aggregated
//! body under plain `application/json` would read as "no resources", so its content type says what
//! it is.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};

use super::resource::Resource;
use super::{json_response, never_stored, ok};
use crate::api::{API_VERSION, GROUP, Kind, VERSION};

/// The aggregated form's media type.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The Kubernetes minor version whose API this resembles.
const KUBERNETES_MINOR: &str = "37";

/// `/version`. Clients refuse a gitVersion that is not `vX.Y.Z`, and warn if the minor version is
/// more than one away from their own.
pub(super) fn version() -> Response {
    ok(&json!({
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "gitVersion":
            format!("v1.{KUBERNETES_MINOR}.0+spawnlet.{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    }))
}

/// `/api`.
pub(super) fn core_versions(headers: &HeaderMap) -> Response {
    if wants_aggregated(headers) {
        return aggregated(&[(true, "", "v1")]);
    }
    ok(&json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}))
}

/// `/apis`.
pub(super) fn groups(headers: &HeaderMap) -> Response {
    if wants_aggregated(headers) {
        return aggregated(&[(false, GROUP, VERSION)]);
    }
    let mut group = group_value();
    if let Some(map) = group.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    ok(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}))
}

/// `/apis/spawnlet.dev`.
pub(super) fn group() -> Response {
    ok(&group_value())
}

fn group_value() -> Value {
    let version = json!({"groupVersion": API_VERSION, "version": VERSION});
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": [version],
        "preferredVersion": version,
    })
}

/// `/api/v1`, `/apis/spawnlet.dev/v1alpha1`.
pub(super) fn resources(is_core: bool) -> Response {
    let mut resources = Vec::new();
    for resource in Resource::ALL.into_iter().filter(|resource| resource.is_core() == is_core) {
        resources.push(json!({
            "name": resource.plural(),
            "singularName": resource.singular(),
            "namespaced": resource.is_namespaced(),
            "kind": resource.kind(),
            "verbs": resource.verbs(),
            "shortNames": resource.short_names(),
            "categories": resource.categories(),
        }));
        if has_status(resource) {
            resources.push(json!({
                "name": format!("{}/status", resource.plural()),
                "singularName": "",
                "namespaced": resource.is_namespaced(),
                "kind": resource.kind(),
                "verbs": ["get"],
            }));
        }
    }
    ok(&json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": if is_core { "v1" } else { API_VERSION },
        "resources": resources,
    }))
}

/// Whether `.../status` can be read on its own.
pub(super) const fn has_status(resource: Resource) -> bool {
    match resource {
        Resource::Records(Kind::Event) | Resource::Reports | Resource::Manifests => false,
        Resource::Records(_) => true,
    }
}

fn wants_aggregated(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|media| {
            let parts: Vec<&str> = media.split(';').map(str::trim).collect();
            parts.contains(&"g=apidiscovery.k8s.io")
                && parts.contains(&"v=v2")
                && parts.contains(&"as=APIGroupDiscoveryList")
        })
}

fn aggregated(groups: &[(bool, &str, &str)]) -> Response {
    let items: Vec<Value> = groups
        .iter()
        .map(|(is_core, group, version)| {
            let resources: Vec<Value> = Resource::ALL
                .into_iter()
                .filter(|resource| resource.is_core() == *is_core)
                .map(|resource| aggregated_resource(resource, group, version))
                .collect();
            json!({
                "metadata": if group.is_empty() { json!({}) } else { json!({"name": group}) },
                "versions": [{
                    "version": version,
                    "freshness": "Current",
                    "resources": resources,
                }],
            })
        })
        .collect();
    let body = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    });
    let mut response = json_response(StatusCode::OK, &body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    never_stored(response)
}

fn aggregated_resource(resource: Resource, group: &str, version: &str) -> Value {
    let response_kind = json!({"group": group, "version": version, "kind": resource.kind()});
    let subresources = if has_status(resource) {
        json!([{"subresource": "status", "responseKind": response_kind, "verbs": ["get"]}])
    } else {
        json!([])
    };
    json!({
        "resource": resource.plural(),
        "singularResource": resource.singular(),
        "scope": if resource.is_namespaced() { "Namespaced" } else { "Cluster" },
        "responseKind": response_kind,
        "verbs": resource.verbs(),
        "shortNames": resource.short_names(),
        "categories": resource.categories(),
        "subresources": subresources,
    })
}
