//! What an agent asks of us. Every request gets an answer; file system and terminals are not
//! offered, so permission is all that there is to ask for.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::codec::ID_BYTES_MAX;
use super::event::{Event, NAME_BYTES_MAX, PermissionAsked, cut};
use super::machine::{Machine, Outgoing, Sent};
use super::permission::{Answer, Choice, Verdict, choices, judge, pick};
use super::update::details;
use super::wire;

/// How many requests of an agent may wait for an answer.
const OPEN_REQUESTS_MAX: usize = 64;

/// JSON-RPC's codes.
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const INTERNAL_ERROR: i32 = -32603;
/// The protocol's own: the asker took its request back.
const REQUEST_CANCELLED: i32 = -32800;

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

/// A request for permission that waits.
#[derive(Debug)]
pub(super) struct OpenRequest {
    request: u64,
    id: Box<RawValue>,
    call: String,
    offered: Vec<Choice>,
}

impl Machine {
    pub(super) fn on_request(&mut self, id: &RawValue, method: &str, params: Option<&RawValue>) {
        let refusal = match method {
            "session/request_permission" => match self.on_permission(id, params) {
                Ok(()) => return,
                Err(refusal) => refusal,
            },
            _ => (METHOD_NOT_FOUND, format!("method not found: {}", cut(method, NAME_BYTES_MAX))),
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
            if self.open_requests.len() >= OPEN_REQUESTS_MAX {
                let message = format!("more than {OPEN_REQUESTS_MAX} requests are open");
                return Err((INTERNAL_ERROR, message));
            }
            let request = self.take_number();
            let mut asked = self.asked(request, &call, verdict, None);
            asked.targets = self.tools.targets(&call);
            asked.offered.clone_from(&offered);
            self.events.push_back(Event::PermissionAsked(asked));
            self.open_requests.push(OpenRequest { request, id: id.to_owned(), call, offered });
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
        self.tell(request, call, verdict, picked.map(str::to_owned));
    }

    fn take_number(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    fn tell(&mut self, request: u64, call: &str, verdict: Verdict, option: Option<String>) {
        let asked = self.asked(request, call, verdict, option);
        self.events.push_back(Event::PermissionAsked(asked));
    }

    fn asked(
        &self,
        request: u64,
        call: &str,
        verdict: Verdict,
        option: Option<String>,
    ) -> PermissionAsked {
        let (turn, tool) = (self.turn(), self.tools.summary(call));
        let (targets, offered) = (Vec::new(), Vec::new());
        PermissionAsked { request, turn, tool, verdict, option, targets, offered }
    }

    /// Answers a request that waits; one that does not any more is left alone.
    pub(super) fn answer_open(&mut self, request: u64, answer: Answer) {
        let Some(at) = self.open_requests.iter().position(|open| open.request == request) else {
            return;
        };
        let open = self.open_requests.remove(at);
        let (verdict, picked) = match answer {
            Answer::Allow => (Verdict::Answered, pick(&open.offered, true)),
            Answer::Reject => (Verdict::Answered, pick(&open.offered, false)),
            Answer::Cancel => (Verdict::Cancelled, None),
        };
        self.select(&open.id, picked);
        self.tell(request, &open.call, verdict, picked.map(str::to_owned));
    }

    /// The agent takes a request back (`$/cancel_request`); it gets the error that says so.
    pub(super) fn withdraw(&mut self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        let params = params.and_then(|params| serde_json::from_str::<Params>(params.get()).ok());
        let Some(Params { request_id }) = params else { return };
        let is_meant = |open: &OpenRequest| open.id.get() == request_id.get();
        let Some(at) = self.open_requests.iter().position(is_meant) else { return };
        let open = self.open_requests.remove(at);
        self.reply(&open.id, Err((REQUEST_CANCELLED, "the request was taken back")));
        self.tell(open.request, &open.call, Verdict::Cancelled, None);
    }

    /// Answers every request that waits with `cancelled`.
    pub(super) fn cancel_open_requests(&mut self) {
        for open in std::mem::take(&mut self.open_requests) {
            self.select(&open.id, None);
            self.tell(open.request, &open.call, Verdict::Cancelled, None);
        }
    }

    fn select(&mut self, id: &RawValue, option: Option<&str>) {
        let outcome = match option {
            Some(option) => json!({"outcome": {"outcome": "selected", "optionId": option}}),
            None => json!({"outcome": {"outcome": "cancelled"}}),
        };
        self.reply(id, Ok(&outcome));
    }

    fn reply(&mut self, id: &RawValue, outcome: Result<&Value, (i32, &str)>) {
        let bytes = wire::answer(id, outcome);
        let sent = Sent::Answer { bytes: bytes.len() };
        self.lines.push(Outgoing { bytes, sent });
    }
}
