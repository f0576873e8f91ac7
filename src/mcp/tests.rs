//! The facade as clients see it, through guard and router, on the store in memory.
//!
//! Beside it stands a scripted loop: a test says what becomes of a turn by writing its record.

mod calls;
mod escaped;
mod fuzz;
mod ownership;
mod protocol;

use std::path::PathBuf;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::admission::token::TokenRequest;
use crate::admission::{Caller, Limits};
use crate::api::session::Toolset;
use crate::api::{Agent, Kind, Session, SessionSpec, Turn, TurnSpec, Uid};
use crate::clock::ManualClock;
use crate::guard::{self, Guard, Rules};
use crate::ports::LiveActivity;
use crate::store::memory::MemoryStore;
use crate::store::records::Txn;
use crate::store::{Append, BlobId, Blobs as _, Store as _, Stream};

const OPERATOR: &str = "operator-token-of-the-tests";
/// Longer than any answer takes; a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A machine on which everything is there.
struct Machine;

impl Inputs for Machine {
    fn executable(&self, _: &Agent) -> Result<Option<PathBuf>, String> {
        Ok(Some("/bin/agent".into()))
    }

    fn directories(&self, cwd: &str, additional: &[String]) -> Result<Vec<String>, String> {
        Ok(std::iter::once(cwd)
            .chain(additional.iter().map(String::as_str))
            .map(str::to_owned)
            .collect())
    }
}

impl Live for Machine {
    fn activity(&self, _: &Uid) -> Option<LiveActivity> {
        None
    }

    fn stderr(&self, _: &Uid) -> Option<Bytes> {
        None
    }

    fn transcript(&self, _: &Uid) -> Option<tokio::sync::watch::Receiver<u64>> {
        None
    }
}

/// A daemon's facade without the daemon.
struct Bench {
    store: Arc<MemoryStore>,
    records: Records,
    admission: Arc<Admission>,
    slots: crate::slots::SharedSlots,
    shutdown: CancellationToken,
    router: Router,
    /// Followed by a test that needs it.
    service: Option<Service>,
}

/// A caller and its token.
struct Holder {
    caller: Caller,
    token: String,
}

impl Bench {
    async fn new() -> Self {
        Self::with(Options {
            max_wait: Duration::from_secs(50),
            progress_every: Duration::from_secs(10),
        })
        .await
    }

    async fn with(options: Options) -> Self {
        Self::under(options, Rules::default()).await
    }

    async fn under(options: Options, rules: Rules) -> Self {
        let store = Arc::new(MemoryStore::new());
        let clock = Arc::new(ManualClock::default());
        let slots = crate::slots::SharedSlots::default();
        let shared_clock: SharedClock = clock;
        let admission = Arc::new(Admission::new(
            Arc::clone(&store) as SharedStore,
            Arc::clone(&store) as SharedBlobs,
            Arc::clone(&shared_clock),
            Arc::clone(&slots),
            Limits { spawns_per_minute_per_root: 1000, ..Limits::default() },
        ));
        admission.ensure_default_namespace().await.unwrap();
        let shutdown = CancellationToken::new();
        let (router, service) = build(State {
            store: Arc::clone(&store) as SharedStore,
            blobs: Arc::clone(&store) as SharedBlobs,
            admission: Arc::clone(&admission),
            live: Arc::new(Machine),
            inputs: Arc::new(Machine),
            streams: Arc::default(),
            clock: Arc::clone(&shared_clock),
            options,
            secret: b"secret".to_vec(),
            shutdown: shutdown.clone(),
        });
        let guard = Guard::new(OPERATOR, Arc::clone(&admission), rules, shared_clock);
        let router = guard::protect(router, Arc::new(guard));
        let records = Records::new(Arc::clone(&store) as SharedStore);
        let bench =
            Self { store, records, admission, slots, shutdown, router, service: Some(service) };
        bench.create(Kind::Agent, json!({
            "metadata": {"name": "stub"},
            "spec": {"argv": ["agent"], "displayName": "A stub", "description": "For tests."},
        }))
        .await;
        bench
    }

    async fn create(&self, kind: Kind, body: Value) {
        let namespace = kind.is_namespaced().then(|| "default".into());
        self.admission
            .create(
                kind,
                namespace.as_ref(),
                body,
                &crate::admission::WriteOptions::default(),
                &crate::admission::Writer::Operator,
            )
            .await
            .unwrap();
    }

    async fn holder(&self, name: &str) -> Holder {
        self.holder_of(name, "default", &[Toolset::Spawn]).await
    }

    async fn holder_of(&self, name: &str, namespace: &str, toolsets: &[Toolset]) -> Holder {
        let request = TokenRequest {
            cwd: Some("/work".to_owned()),
            toolsets: toolsets.to_vec(),
            ..TokenRequest::default()
        };
        let made = self.admission.create_token(&namespace.into(), &name.into(), &request).await;
        let token = made.map(|made| made.token).unwrap();
        let session = self
            .records
            .get::<SessionSpec>(&namespace.into(), &name.into())
            .await
            .unwrap()
            .unwrap();
        // What the loop does first: a caller's directories are settled before it asks.
        let mut settled = session.clone();
        settled.status.scope.get_or_insert(crate::api::session::Scope {
            cwd: "/work".to_owned(),
            additional_directories: Vec::new(),
            label: "/work".to_owned(),
            folders: Vec::new(),
        });
        self.commit(Txn::new().update(&session, &settled)).await;
        let caller = self.admission.bearer(&token).await.unwrap().unwrap().caller;
        Holder { caller, token }
    }

    async fn commit(&self, txn: Txn) {
        txn.commit(&*self.store).await.unwrap();
    }

    /// A request as it is.
    async fn open(&self, request: Request<Body>) -> axum::response::Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// A message in the revision without sessions.
    fn modern(token: &str, path: &str, method: &str, params: Value) -> Request<Body> {
        let mut params = params;
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
        params["_meta"]["io.modelcontextprotocol/clientInfo"] =
            json!({"name": "test", "version": "1"});
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let mut request = Self::post(token, path, &body);
        let headers = request.headers_mut();
        headers.insert("mcp-protocol-version", "2026-07-28".parse().unwrap());
        headers.insert("mcp-method", method.parse().unwrap());
        let name = params.get("name").or_else(|| params.get("uri")).and_then(Value::as_str);
        if let Some(name) = name {
            headers.insert("mcp-name", name.parse().unwrap());
        }
        request
    }

    fn post(token: &str, path: &str, body: &Value) -> Request<Body> {
        Request::builder()
            .method("POST")
            .uri(path)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(Body::from(body.to_string()))
            .unwrap()
    }

    /// The answer to a message.
    async fn ask(&self, token: &str, method: &str, params: Value) -> Value {
        let response = self.open(Self::modern(token, "/mcp/spawn", method, params)).await;
        last_message(response).await
    }

    /// The result of a tool call.
    async fn call(&self, token: &str, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": tool, "arguments": arguments});
        let answer = self.ask(token, "tools/call", params).await;
        assert!(answer["result"].is_object(), "{answer:#}");
        answer["result"].clone()
    }

    /// The answer of a tool call that was not refused: the same JSON twice.
    async fn told(&self, token: &str, tool: &str, arguments: Value) -> Value {
        let result = self.call(token, tool, arguments).await;
        assert!(result["isError"] != json!(true), "{result:#}");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), result["structuredContent"]);
        let definition = spawn::SpawnTool::named(tool).unwrap().definition();
        let schema = Value::Object(definition.output_schema.unwrap().as_ref().clone());
        if let Err(error) = jsonschema::validate(&schema, &result["structuredContent"]) {
            panic!("{result:#}: {error}");
        }
        result["structuredContent"].clone()
    }

    /// The failure of a tool call that was refused: text only.
    async fn refused(&self, token: &str, tool: &str, arguments: Value) -> Value {
        let result = self.call(token, tool, arguments).await;
        assert_eq!(result["isError"], true, "{result:#}");
        assert!(result.get("structuredContent").is_none(), "{result:#}");
        let text = result["content"][0]["text"].as_str().unwrap();
        serde_json::from_str::<Value>(text).unwrap()["error"].clone()
    }

    /// A turn of a caller's, admitted and not taken by anybody.
    async fn made(&self, holder: &Holder) -> crate::admission::spawn::Made {
        let request = crate::admission::spawn::PromptRequest {
            agent: "stub".into(),
            prompt: "p".into(),
            background: true,
            ..Default::default()
        };
        match self.admission.prompt(&holder.caller, request, &Machine).await.unwrap() {
            crate::admission::spawn::Prompted::Turn(made) => *made,
            other => panic!("{other:?}"),
        }
    }

    /// Changes a turn as the loop does.
    async fn turn(&self, uid: &Uid, change: impl Fn(&mut Turn)) -> Turn {
        let old = self.records.by_uid::<TurnSpec>(uid).await.unwrap().unwrap();
        let mut new = old.clone();
        change(&mut new);
        self.commit(Txn::new().update(&old, &new)).await;
        new
    }

    async fn session(&self, uid: &Uid, change: impl Fn(&mut Session)) {
        let old = self.records.by_uid::<SessionSpec>(uid).await.unwrap().unwrap();
        let mut new = old.clone();
        change(&mut new);
        self.commit(Txn::new().update(&old, &new)).await;
    }

    /// Ends a turn with an answer.
    async fn answer(&self, turn: &Uid, text: &str) {
        let mut offset = 0;
        for chunk in text.as_bytes().chunks(60_000) {
            let blob = BlobId { owner: turn.clone(), stream: Stream::Response };
            let bytes = Bytes::copy_from_slice(chunk);
            self.store.append(vec![Append { blob, offset, bytes }]).await.unwrap();
            offset += chunk.len() as u64;
        }
        self.turn(turn, |turn| {
            let uid = turn.metadata.uid.clone();
            let status = serde_json::from_value(json!({
                "phase": "Completed", "delivery": "Sent", "stopReason": "end_turn",
                "responseId": uid, "responseBytes": offset,
                "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z",
            }));
            turn.status = status.unwrap();
        })
        .await;
    }

    /// Gives every slot back, as the loop does with the ends of turns.
    async fn free(&self) {
        let mut slots = self.slots.lock().await;
        let txn = slots.write(Txn::new(), &[]);
        let rev = txn.commit(&*self.store).await.unwrap();
        slots.written(Vec::new(), rev);
    }

    /// The turn of a call that waits: the one that was made last.
    async fn open_turn(&self, holder: &Holder) -> Turn {
        let mut watch = self.store.watch("/turn/", crate::store::Rev(0)).await.unwrap();
        loop {
            let change = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
            let crate::store::Change::Put(record) = change else { continue };
            let told: Turn =
                crate::store::records::decode(&record.key, &record.value, record.rev).unwrap();
            // The watch tells of the past first: what counts is how the turn stands now.
            let found = self.records.by_uid::<TurnSpec>(&told.metadata.uid).await.unwrap();
            let is_ours = told.spec.source.caller.as_ref() == Some(&holder.caller.session);
            if let Some(turn) = found.filter(|turn| is_ours && !turn.status.phase.is_final()) {
                return turn;
            }
        }
    }
}

/// The last JSON-RPC message of an answer, be it JSON or a stream.
async fn last_message(response: axum::response::Response) -> Value {
    messages(response).await.pop().unwrap_or_default()
}

/// Every JSON-RPC message of an answer.
async fn messages(response: axum::response::Response) -> Vec<Value> {
    let is_stream = response
        .headers()
        .get("content-type")
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    let body = tokio::time::timeout(PATIENCE * 10, response.into_body().collect()).await;
    let bytes = body.unwrap().unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    if is_stream {
        let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
        data.filter(|data| !data.trim().is_empty())
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    } else {
        vec![serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))]
    }
}
