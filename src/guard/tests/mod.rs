//! Who comes through, what he then is, and what nobody reads in a log.

mod matrix;
mod secrets;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, Uri};
use axum::response::IntoResponse as _;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::*;
use crate::admission::token::TokenRequest;
use crate::api::Time;
use crate::api::session::Toolset;
use crate::clock::{Clock as _, ManualClock};
use crate::store::memory::MemoryStore;

const OPERATOR: &str = "operator-token-of-the-tests";

/// A guard before a handler that counts who comes.
struct Gate {
    admission: Arc<Admission>,
    guard: Arc<Guard>,
    clock: Arc<ManualClock>,
    reached: Arc<AtomicUsize>,
    router: Router,
}

struct Answer {
    code: u16,
    headers: HeaderMap,
    text: String,
}

impl Gate {
    async fn new() -> Self {
        Self::with(Rules::default()).await
    }

    async fn with(rules: Rules) -> Self {
        let store = Arc::new(MemoryStore::new());
        let clock = Arc::new(ManualClock::default());
        let admission = Arc::new(Admission::new(
            store.clone(),
            store,
            clock.clone(),
            crate::slots::SharedSlots::default(),
            crate::admission::Limits::default(),
        ));
        admission.ensure_default_namespace().await.unwrap();
        let guard = Arc::new(Guard::new(OPERATOR, admission.clone(), rules, clock.clone()));
        let reached = Arc::new(AtomicUsize::new(0));
        let router = Router::new().fallback(behind).with_state(reached.clone());
        let router = protect(router, guard.clone());
        Self { admission, guard, clock, reached, router }
    }

    /// A token of the session `name`, made if it is not there.
    async fn token(&self, name: &str, toolsets: &[Toolset], expires_at: Option<Time>) -> String {
        let request = TokenRequest {
            toolsets: toolsets.to_vec(),
            expires_at,
            cwd: Some("/srv".to_owned()),
            ..TokenRequest::default()
        };
        let made = self.admission.create_token(&"default".into(), &name.into(), &request).await;
        made.map_err(|refusal| refusal.to_string()).unwrap().token
    }

    /// A token that has expired.
    async fn expired(&self) -> String {
        let soon = Time::from_millis(self.clock.now().time.as_millis() + 1);
        let token = self.token("expired", &[], Some(soon)).await;
        self.clock.advance(std::time::Duration::from_millis(2));
        token
    }

    async fn send(
        &self,
        method: &str,
        uri: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(uri.parse::<Uri>().unwrap());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).unwrap();
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { code: parts.status.as_u16(), headers: parts.headers, text }
    }

    /// A GET with a token.
    async fn get(&self, path: &str, token: &str) -> Answer {
        let authorization = format!("Bearer {token}");
        let headers = [("host", "localhost"), ("authorization", authorization.as_str())];
        self.send("GET", path, &headers, Body::empty()).await
    }

    fn reached(&self) -> usize {
        self.reached.load(Ordering::SeqCst)
    }
}

/// Says who came, and how much it was sent.
async fn behind(
    State(reached): State<Arc<AtomicUsize>>,
    request: axum::extract::Request,
) -> Response {
    reached.fetch_add(1, Ordering::SeqCst);
    assert!(!request.uri().path().ends_with("/panic"), "as was asked for");
    let who = match request.extensions().get::<Principal>() {
        None => "nobody".to_owned(),
        Some(Principal::Operator) => "operator".to_owned(),
        Some(Principal::Caller(bearer)) => bearer.caller.name.to_string(),
    };
    match read_body(request.into_body()).await {
        Ok(bytes) => format!("{who} {}", bytes.len()).into_response(),
        Err(fault) => format!("{who} {fault:?}").into_response(),
    }
}

#[tokio::test]
async fn what_passes_carries_who_it_is_and_nothing_that_it_says_of_itself() {
    let gate = Gate::new().await;
    let token = gate.token("mine", &[Toolset::Spawn], None).await;
    assert_eq!(gate.get("/mcp", OPERATOR).await.text, "operator 0");
    assert_eq!(gate.get("/mcp", &token).await.text, "mine 0");
    assert_eq!(gate.get("/apis", &token).await.text, "mine 0");
    let headers = [("host", "localhost"), ("mcp-session-id", token.as_str())];
    assert_eq!(gate.send("GET", "/healthz", &headers, Body::empty()).await.text, "nobody 0");
    assert_eq!(gate.send("GET", "/mcp", &headers, Body::empty()).await.code, 401);
}

#[tokio::test]
async fn a_path_of_a_toolset_needs_a_token_that_opens_it() {
    let gate = Gate::new().await;
    let spawn = gate.token("a", &[Toolset::Spawn], None).await;
    let fleet = gate.token("b", &[Toolset::Fleet, Toolset::Jobs], None).await;
    for (path, token, code) in [
        ("/mcp", spawn.as_str(), 200),
        ("/mcp/spawn", &spawn, 200),
        ("/mcp/fleet", &spawn, 403),
        ("/mcp/fleet/", &spawn, 403),
        ("/mcp/fleet/x", &spawn, 403),
        ("/mcp", &fleet, 200),
        ("/mcp/spawn", &fleet, 403),
        ("/mcp/fleet", &fleet, 200),
        ("/mcp/jobs", &fleet, 200),
        ("/mcp/spawn", OPERATOR, 200),
        // Whether a path is there at all is the router's to say; a disguise is not let through.
        ("/mcp/nothing", &spawn, 200),
        ("/mcp/%66leet", &spawn, 404),
        ("/mcp/fleet%2f", &spawn, 404),
    ] {
        assert_eq!(gate.get(path, token).await.code, code, "{path}");
    }
}

#[tokio::test]
async fn each_token_has_its_own_rate() {
    let mut rules = Rules::default();
    rules.http.per_token_rate = "2/s".parse().unwrap();
    let gate = Gate::with(rules).await;
    let (one, other) = (gate.token("a", &[], None).await, gate.token("a", &[], None).await);
    for token in [OPERATOR, &one, &other] {
        assert_eq!(gate.get("/mcp", token).await.code, 200);
        assert_eq!(gate.get("/mcp", token).await.code, 200);
        let refused = gate.get("/mcp", token).await;
        assert_eq!((refused.code, refused.headers["retry-after"].to_str().unwrap()), (429, "1"));
    }
    // Strangers take nothing from anybody and are told nothing.
    for _ in 0..5 {
        assert_eq!(gate.get("/mcp", "spawnlet_no").await.code, 401);
    }
    gate.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(gate.get("/mcp", &one).await.code, 200);
}

#[tokio::test]
async fn the_configured_bound_of_bodies_holds_until_a_restart() {
    let gate = Gate::with(Rules { body_bytes: 1024, ..Rules::default() }).await;
    let headers = [("host", "localhost"), ("authorization", &*format!("Bearer {OPERATOR}"))];
    let send = |bytes: usize| gate.send("PATCH", "/x", &headers, vec![b' '; bytes]);
    assert_eq!(send(1024).await.text, "operator 1024");
    assert_eq!(send(1025).await.text, "operator TooLarge { bytes_max: 1024 }");
    gate.guard.reload(Rules::default());
    assert_eq!(send(1025).await.text, "operator TooLarge { bytes_max: 1024 }");
}

#[tokio::test]
async fn a_body_over_its_bound_is_refused_before_or_while_it_is_read() {
    let gate = Gate::new().await;
    let bound = Rules::default().body_bytes;
    let authorization = format!("Bearer {OPERATOR}");
    let length = (10 * 1024 * 1024).to_string();
    let told = [
        ("host", "localhost"),
        ("authorization", authorization.as_str()),
        ("content-type", "application/json"),
        ("content-length", length.as_str()),
    ];
    let endless = futures::stream::repeat_with(|| {
        Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 64 * 1024]))
    });
    // The body has no end: whoever would read all of it would never answer.
    let answer = gate.send("POST", "/mcp", &told, Body::from_stream(endless.clone())).await;
    assert_eq!((answer.code, gate.reached()), (413, 0));
    assert_eq!(answer.headers["connection"], "close");
    let answer = gate.send("POST", "/mcp", &told[..3], Body::from_stream(endless)).await;
    assert_eq!(answer.text, format!("operator TooLarge {{ bytes_max: {bound} }}"));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_given_up() {
    let gate = Gate::new().await;
    let authorization = format!("Bearer {OPERATOR}");
    let headers = [
        ("host", "localhost"),
        ("authorization", authorization.as_str()),
        ("content-type", "application/json"),
    ];
    let body = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
    assert_eq!(gate.send("POST", "/mcp", &headers, body).await.text, "operator TooSlow");
}

#[tokio::test]
async fn a_panic_ends_its_own_request_and_tells_nothing() {
    let gate = Gate::new().await;
    let answer = gate.get("/panic", OPERATOR).await;
    assert_eq!(answer.code, 500);
    assert!(!answer.text.contains("as was asked for"), "{}", answer.text);
    assert_eq!(gate.get("/mcp", OPERATOR).await.code, 200);
}
