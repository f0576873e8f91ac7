//! What an agent asks of us: permission here, files and terminals in `services`. Every request gets
//! an answer.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::codec::ID_BYTES_MAX;
use super::event::{Event, NAME_BYTES_MAX, PermissionAsked, ToolUpdate, cut};
use super::machine::{Machine, Outgoing, Sent};
use super::permission::{Answer, Choice, Verdict, choices, judge, pick};
use super::services::Call;
use super::update::details;
use super::wire;
use crate::api::Uid;

/// How many requests of an agent may wait for an answer.
const OPEN_REQUESTS_MAX: usize = 64;

/// JSON-RPC's codes.
const METHOD_NOT_FOUND: i32 = -32601;
pub(super) const INVALID_PARAMS: i32 = -32602;
pub(super) const INTERNAL_ERROR: i32 = -32603;
/// The protocol's own: the asker took its request back.
pub(super) const REQUEST_CANCELLED: i32 = -32800;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    #[serde(borrow)]
    tool_call: &'a RawValue,
    #[serde(borrow)]
    options: &'a RawValue,
}

/// A request that waits for somebody's decision.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) request: u64,
    pub(super) id: Box<RawValue>,
    pub(super) subject: Subject,
}

/// What a decision is waited for.
#[derive(Debug)]
pub(super) enum Subject {
    /// A tool call of the agent's, and the answers that it offers.
    Tool { call: String, offered: Vec<Choice> },
    /// Something that we are to do, and for which turn.
    Service { call: Call, turn: Option<Uid> },
}

impl Unanswered {
    /// What it holds while it waits.
    pub(super) fn bytes(&self) -> usize {
        match &self.subject {
            Subject::Tool { .. } => 0,
            Subject::Service { call, .. } => call.bytes(),
        }
    }
}

impl Machine {
    pub(super) fn on_request(&mut self, id: &RawValue, method: &str, params: Option<&RawValue>) {
        let refusal = match method {
            "session/request_permission" => match self.on_permission(id, params) {
                Ok(()) => return,
                Err(refusal) => refusal,
            },
            _ => match self.on_service(id, method, params) {
                Some(Ok(())) => return,
                Some(Err(refusal)) => refusal,
                None => {
                    let method = cut(method, NAME_BYTES_MAX);
                    (METHOD_NOT_FOUND, format!("method not found: {method}"))
                }
            },
        };
        let (code, message) = refusal;
        self.reply(id, Err((code, &message)));
        let method = cut(method, NAME_BYTES_MAX).to_owned();
        self.events.push_back(Event::Traffic { method, refused: Some(code) });
    }

    /// Answers a request for permission, or lets it wait.
    fn on_permission(
        &mut self,
        id: &RawValue,
        params: Option<&RawValue>,
    ) -> Result<(), (i32, String)> {
        let invalid = |what: &str| (INVALID_PARAMS, what.to_owned());
        let params: Params<'_> = params
            .and_then(|params| serde_json::from_str(params.get()).ok())
            .ok_or_else(|| invalid("parameters are missing or cannot be read"))?;
        if self.session.as_deref() != Some(&*params.session_id) {
            return Err(invalid("sessionId is not this session's"));
        }
        let said = details(params.tool_call).ok_or_else(|| invalid("toolCall is no object"))?;
        let call = wire::text(&said, "toolCallId")
            .filter(|id| id.len() <= ID_BYTES_MAX)
            .ok_or_else(|| invalid("toolCall.toolCallId is missing or too long"))?;
        let offered = serde_json::from_str(params.options.get()).ok().as_ref().and_then(choices);
        let offered = offered.ok_or_else(|| invalid("options is no list"))?;
        self.tools.learn(&call, &said);
        let verdict = self.judge(&call);
        if verdict == Verdict::Wait {
            self.has_room()?;
            let request = self.take_number();
            let mut asked = self.asked(request, self.tools.summary(&call), verdict, None);
            asked.targets = self.tools.targets(&call);
            asked.offered.clone_from(&offered);
            self.events.push_back(Event::PermissionAsked(asked));
            let subject = Subject::Tool { call, offered };
            self.open_requests.push(Unanswered { request, id: id.to_owned(), subject });
            return Ok(());
        }
        self.conclude(id, &call, verdict, &offered);
        Ok(())
    }

    fn judge(&self, call: &str) -> Verdict {
        if self.is_cancelled {
            return Verdict::Cancelled;
        }
        let inside = self.tools.is_inside(call, &self.options.roots);
        let kind = self.tools.summary(call).kind;
        match judge(self.options.permissions, kind.as_deref(), inside) {
            // There is no turn whose record could say that somebody is waited for.
            Verdict::Wait if self.turn().is_none() => Verdict::RejectOutOfTurn,
            verdict => verdict,
        }
    }

    fn conclude(&mut self, id: &RawValue, call: &str, verdict: Verdict, offered: &[Choice]) {
        let picked = match verdict {
            Verdict::Allow => pick(offered, true),
            Verdict::Reject | Verdict::RejectOutside | Verdict::RejectOutOfTurn => {
                pick(offered, false)
            }
            Verdict::Wait | Verdict::Answered | Verdict::Cancelled => None,
        };
        self.select(id, picked);
        let request = self.take_number();
        self.tell(request, self.tools.summary(call), verdict, picked.map(str::to_owned));
    }

    /// Refuses one more request where too many are not answered.
    pub(super) fn has_room(&self) -> Result<(), (i32, String)> {
        if self.open_requests.len() + self.serving.len() < OPEN_REQUESTS_MAX {
            return Ok(());
        }
        Err((INTERNAL_ERROR, format!("more than {OPEN_REQUESTS_MAX} requests are open")))
    }

    pub(super) fn take_number(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    fn tell(&mut self, request: u64, tool: ToolUpdate, verdict: Verdict, option: Option<String>) {
        let asked = self.asked(request, tool, verdict, option);
        self.events.push_back(Event::PermissionAsked(asked));
    }

    pub(super) fn asked(
        &self,
        request: u64,
        tool: ToolUpdate,
        verdict: Verdict,
        option: Option<String>,
    ) -> PermissionAsked {
        let turn = self.turn();
        let (targets, offered) = (Vec::new(), Vec::new());
        PermissionAsked { request, turn, tool, verdict, option, targets, offered }
    }

    /// Answers a request that waits; one that does not any more is left alone.
    pub(super) fn answer_open(&mut self, request: u64, answer: Answer) {
        let Some(at) = self.open_requests.iter().position(|open| open.request == request) else {
            return;
        };
        let open = self.open_requests.remove(at);
        let (verdict, allow) = match answer {
            Answer::Allow => (Verdict::Answered, Some(true)),
            Answer::Reject => (Verdict::Answered, Some(false)),
            Answer::Cancel => (Verdict::Cancelled, None),
        };
        self.settle(open, verdict, allow);
    }

    /// Tells what was decided of a request that waited; nothing: it is cancelled.
    fn settle(&mut self, open: Unanswered, verdict: Verdict, allow: Option<bool>) {
        let Unanswered { request, id, subject } = open;
        match subject {
            Subject::Tool { call, offered } => {
                let picked = allow.and_then(|allow| pick(&offered, allow));
                self.select(&id, picked);
                let tool = self.tools.summary(&call);
                self.tell(request, tool, verdict, picked.map(str::to_owned));
            }
            Subject::Service { call, turn } => {
                // What is allowed too late is not done: its turn is over.
                let allow = allow.filter(|allow| !allow || self.turn() == turn);
                let picked = allow.map(|allow| if allow { "allow_once" } else { "reject_once" });
                self.tell(request, call.tool(), verdict, picked.map(str::to_owned));
                match allow {
                    Some(true) => self.begin_service(request, id, call),
                    Some(false) => self.reply(&id, Err((INVALID_PARAMS, "it was denied"))),
                    None => self.reply(&id, Err((REQUEST_CANCELLED, "the turn is cancelled"))),
                }
            }
        }
    }

    /// The agent takes a request back (`$/cancel_request`); it gets the error that
    /// says so. One that is being carried out is answered when that is done.
    pub(super) fn withdraw(&mut self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        let params = params.and_then(|params| serde_json::from_str::<Params>(params.get()).ok());
        let Some(Params { request_id }) = params else { return };
        let is_meant = |open: &Unanswered| open.id.get() == request_id.get();
        let Some(at) = self.open_requests.iter().position(is_meant) else { return };
        let open = self.open_requests.remove(at);
        self.reply(&open.id, Err((REQUEST_CANCELLED, "the request was taken back")));
        let tool = match &open.subject {
            Subject::Tool { call, .. } => self.tools.summary(call),
            Subject::Service { call, .. } => call.tool(),
        };
        self.tell(open.request, tool, Verdict::Cancelled, None);
    }

    /// Answers every request that waits with `cancelled`.
    pub(super) fn cancel_open_requests(&mut self) {
        for open in std::mem::take(&mut self.open_requests) {
            self.settle(open, Verdict::Cancelled, None);
        }
    }

    fn select(&mut self, id: &RawValue, option: Option<&str>) {
        let outcome = match option {
            Some(option) => json!({"outcome": {"outcome": "selected", "optionId": option}}),
            None => json!({"outcome": {"outcome": "cancelled"}}),
        };
        self.reply(id, Ok(&outcome));
    }

    pub(super) fn reply(&mut self, id: &RawValue, outcome: Result<&Value, (i32, &str)>) {
        let bytes = wire::answer(id, outcome);
        let sent = Sent::Answer { bytes: bytes.len() };
        self.lines.push(Outgoing { bytes, sent });
    }
}
