//! Every combination of what a request's head can get wrong, against a table.
//!
//! Each value stands with the status that it alone would be refused with. What is checked first
//! decides; only a head in which nothing is wrong reaches the handler.

use super::*;

const ORIGINS: [(Option<&str>, u16); 7] = [
    (None, 0),
    (Some("http://localhost"), 0),
    (Some("https://127.0.0.1:5173"), 0),
    (Some("http://evil.example"), 403),
    (Some("http://localhost.evil.example"), 403),
    (Some("null"), 403),
    (Some("file://"), 403),
];
const HOSTS: [(Option<&str>, u16); 8] = [
    (Some("localhost"), 0),
    (Some("127.0.0.1:7420"), 0),
    (Some("[::1]:7420"), 0),
    (None, 421),
    (Some("evil.example"), 421),
    (Some("localhost.evil.example"), 421),
    (Some("127.0.0.1.evil.example:7420"), 421),
    (Some("0.0.0.0:7420"), 421),
];
const TYPES: [Option<&str>; 4] =
    [Some("application/json"), Some("application/json; charset=utf-8"), Some("text/plain"), None];
const METHODS: [(&str, u16); 4] = [("POST", 0), ("GET", 0), ("DELETE", 0), ("PUT", 405)];

/// With what a type is refused, by method: only POST must have one.
fn of_type(method: &str, media: Option<&str>) -> u16 {
    match (method, media) {
        ("GET", _) | ("DELETE", None) => 0,
        ("POST", None) | (_, Some("text/plain")) => 415,
        _ => 0,
    }
}

#[tokio::test]
async fn only_a_request_with_nothing_wrong_reaches_a_handler() {
    let mut rules = Rules::default();
    rules.http.per_token_rate = "100000/s".parse().unwrap();
    let gate = Gate::with(rules).await;
    let bearer = |token: &str| Some(format!("Bearer {token}"));
    let expired = gate.expired().await;
    let auths: [(Option<String>, u16); 7] = [
        (bearer(OPERATOR), 0),
        (bearer(&gate.token("a", &[Toolset::Spawn], None).await), 0),
        (bearer(&gate.token("a", &[Toolset::Fleet], None).await), 403),
        (bearer(&expired), 401),
        (bearer("spawnlet_0000"), 401),
        (Some(format!("Basic {OPERATOR}")), 401),
        (None, 401),
    ];
    let (mut sent, mut expected_to_pass) = (0, 0);
    for (origin, of_origin) in ORIGINS {
        for (host, of_host) in HOSTS {
            for media in TYPES {
                for (method, of_method) in METHODS {
                    for (auth, of_auth) in &auths {
                        let wrong =
                            [of_method, of_host, of_origin, of_type(method, media), *of_auth];
                        let expected = wrong.into_iter().find(|code| *code > 0).unwrap_or(200);
                        let headers: Vec<(&str, &str)> = [
                            ("origin", origin),
                            ("host", host),
                            ("content-type", media),
                            ("authorization", auth.as_deref()),
                        ]
                        .into_iter()
                        .filter_map(|(name, value)| Some((name, value?)))
                        .collect();
                        let body = if method == "POST" { "{}" } else { "" };
                        let answer = gate.send(method, "/mcp/spawn", &headers, body).await;
                        assert_eq!(answer.code, expected, "{method} {headers:?}: {}", answer.text);
                        assert_eq!(answer.headers["cache-control"], "no-store");
                        assert!(answer.headers.get("access-control-allow-origin").is_none());
                        let asks = answer.headers.get("www-authenticate");
                        assert_eq!(asks.is_some(), expected == 401, "{method} {headers:?}");
                        sent += 1;
                        expected_to_pass += usize::from(expected == 200);
                        assert_eq!(gate.reached(), expected_to_pass, "{method} {headers:?}");
                    }
                }
            }
        }
    }
    assert_eq!(sent, 7 * 8 * 4 * 4 * 7);
    assert!(expected_to_pass > 100, "{expected_to_pass}");
}

#[tokio::test]
async fn rest_takes_a_body_without_a_type_and_judges_patches_itself() {
    let gate = Gate::new().await;
    let authorization = format!("Bearer {OPERATOR}");
    for (method, media, code) in [
        ("POST", "", 200),
        ("PUT", "application/json", 200),
        ("POST", "application/x-www-form-urlencoded", 415),
        ("POST", "multipart/form-data; boundary=x", 415),
        ("PUT", "text/plain", 415),
        ("DELETE", "text/plain", 415),
        ("PATCH", "application/merge-patch+json", 200),
        ("HEAD", "", 200),
        ("OPTIONS", "", 405),
        ("TRACE", "", 405),
        ("BREW", "", 405),
    ] {
        let mut headers = vec![("host", "localhost"), ("authorization", authorization.as_str())];
        if !media.is_empty() {
            headers.push(("content-type", media));
        }
        let answer = gate.send(method, "/apis", &headers, "{}").await;
        assert_eq!(answer.code, code, "{method} {media}");
        assert_eq!(answer.headers.contains_key("allow"), code == 405, "{method} {media}");
    }
    let twice = [
        ("host", "localhost"),
        ("authorization", authorization.as_str()),
        ("content-type", "application/json"),
        ("content-type", "text/plain"),
    ];
    assert_eq!(gate.send("POST", "/apis", &twice, "{}").await.code, 415);
}
