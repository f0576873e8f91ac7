//! The ranges of the configuration's values. A value outside of its range stops the start with the
//! key's name. Upper bounds are far above use: they keep one wrong digit from exhausting memory.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Config, Fleet, Http, Jobs, Limits, Mcp, Retention};
use crate::api::field::FieldErrorReason::{FieldValueForbidden, FieldValueInvalid};
use crate::api::quantity::{Bytes, DURATION_MAX};
use crate::api::validate::{self, ID_CHARS_MAX};
use crate::api::{Dur, FieldErrors, FieldPath, command};

/// The largest count of anything.
const COUNT_MAX: u64 = 1_000_000;
/// The largest prompt: with JSON's escapes it must still fit the 2 MiB that may wait to be written
/// to an agent.
const PROMPT_BYTES_MAX: Bytes = Bytes::mebi(1);
/// The smallest and the largest request body.
const REQUEST_BYTES: RangeInclusive<Bytes> = Bytes::kibi(64)..=Bytes::mebi(64);
/// The longest that a hook may hold up what it observes.
const HOOK_TIMEOUT_MAX: Duration = Duration::from_mins(5);

pub(super) fn config(config: &Config) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    listeners(&mut errors, config);
    for (key, path) in [("socket", &config.socket), ("dataDir", &config.data_dir)] {
        if path.as_deref() == Some("") {
            errors.push(FieldPath::new(key), FieldValueInvalid, "is empty; expected a path");
        }
    }
    for (index, path) in config.manifests.iter().flatten().enumerate() {
        if path.is_empty() {
            let at = FieldPath::new("manifests").index(index);
            errors.push(at, FieldValueInvalid, "is empty; expected a directory");
        }
    }
    if let Some(slip) = config.log.level.split(',').find(|part| !is_log_directive(part)) {
        let message = format!(
            "`{slip}`: expected {}, or TARGET=LEVEL; several with commas between them",
            LOG_LEVELS.join(", ")
        );
        errors.push(FieldPath::new("log.level"), FieldValueInvalid, message);
    }
    limits(&mut errors, &config.limits);
    http(&mut errors, &config.http);
    mcp(&mut errors, &config.mcp);
    fleet(&mut errors, &config.fleet);
    let Jobs { max_active_per_owner, max_output_bytes } = config.jobs;
    count(&mut errors, "jobs.maxActivePerOwner", max_active_per_owner.into());
    count_up_to(&mut errors, "jobs.maxOutputBytes", max_output_bytes, 64 << 20);
    duration(&mut errors, "permissionTimeout", config.permission_timeout);
    validate::mcp_servers(&mut errors, &FieldPath::new("mcpServers"), &config.mcp_servers);
    if let Some(model) = &config.subagent.model {
        validate::line(&mut errors, FieldPath::new("subagent.model"), model, ID_CHARS_MAX);
    }
    hooks(&mut errors, config);
    let Retention { reports_per_object, reports, events, transcripts: _ } = config.retention;
    count(&mut errors, "retention.reportsPerObject", reports_per_object.into());
    count(&mut errors, "retention.reports", reports.into());
    duration(&mut errors, "retention.events", events);
    errors.into_result()
}

/// From the quietest to the loudest.
const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Whether a part of `log.level` says how much is told. The log itself would take anything else for
/// the name of a part of the program, and fall silent.
fn is_log_directive(part: &str) -> bool {
    let level = part.rsplit_once('=').map_or(part, |(_, level)| level).trim();
    LOG_LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level))
}

fn listeners(errors: &mut FieldErrors, config: &Config) {
    if !config.listen.ip().is_loopback() && !config.insecure_listen {
        let message = format!(
            "{}: only a loopback address is served without TLS; set insecureListen to do it all the same",
            config.listen
        );
        errors.push(FieldPath::new("listen"), FieldValueForbidden, message);
    }
    if config.listen == config.listen_tls && config.listen.port() != 0 {
        let message = format!("{}: is the address of listen already", config.listen_tls);
        errors.push(FieldPath::new("listenTls"), FieldValueInvalid, message);
    }
    for (key, list, scheme) in [
        ("allowedHosts", &config.allowed_hosts, false),
        ("allowedOrigins", &config.allowed_origins, true),
    ] {
        for (index, value) in list.iter().enumerate() {
            let at = FieldPath::new(key).index(index);
            let host = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
            let host = if scheme { host } else { Some(value.as_str()) };
            let is_host = |host: &str| {
                !host.is_empty()
                    && !host.contains(|char: char| "/*@".contains(char) || char.is_whitespace())
            };
            if !host.is_some_and(is_host) {
                let expected =
                    if scheme { "http:// or https:// and a host" } else { "a host, or host:port" };
                errors.push(at, FieldValueInvalid, format!("{value:?}: expected {expected}"));
            }
        }
    }
}

fn limits(errors: &mut FieldErrors, limits: &Limits) {
    for (key, value) in [
        ("limits.maxActiveTurns", limits.max_active_turns),
        ("limits.maxActiveTurnsPerParent", limits.max_active_turns_per_parent),
        ("limits.maxIdleProcessesPerParent", limits.max_idle_processes_per_parent),
        ("limits.maxChildrenTotalPerRoot", limits.max_children_total_per_root),
        ("limits.spawnsPerMinutePerRoot", limits.spawns_per_minute_per_root),
        ("limits.inbox", limits.inbox),
    ] {
        count(errors, key, value.into());
    }
    if limits.max_tokens_per_root == Some(0) {
        let message = "0: expected at least 1; leave it out for no limit";
        errors.push(FieldPath::new("limits.maxTokensPerRoot"), FieldValueInvalid, message);
    }
    if let Some(cost) = limits.max_cost_per_root.filter(|cost| !(cost.is_finite() && *cost > 0.0)) {
        let message = format!("{cost}: expected a number above 0; leave it out for no limit");
        errors.push(FieldPath::new("limits.maxCostPerRoot"), FieldValueInvalid, message);
    }
    duration(errors, "limits.maxTtl", limits.max_ttl);
    duration(errors, "limits.defaultChildTtl", limits.default_child_ttl);
    if limits.default_child_ttl > limits.max_ttl {
        let message = format!(
            "{}: expected at most limits.maxTtl, {}",
            limits.default_child_ttl, limits.max_ttl
        );
        errors.push(FieldPath::new("limits.defaultChildTtl"), FieldValueInvalid, message);
    }
    size(errors, "limits.promptBytes", limits.prompt_bytes, &(Bytes::new(1)..=PROMPT_BYTES_MAX));
}

fn http(errors: &mut FieldErrors, http: &Http) {
    count(errors, "http.perTokenRate", http.per_token_rate.count().into());
    count(errors, "http.perTokenConcurrency", http.per_token_concurrency.into());
    // As many as the smallest usual limit of open files leaves room for.
    count_up_to(errors, "http.connections", http.connections.into(), 65_536);
}

fn mcp(errors: &mut FieldErrors, mcp: &Mcp) {
    duration(errors, "mcp.progressEvery", mcp.progress_every);
    size(errors, "mcp.requestBytes", mcp.request_bytes, &REQUEST_BYTES);
}

fn fleet(errors: &mut FieldErrors, fleet: &Fleet) {
    for (key, value) in [
        ("fleet.defaultTailMessages", fleet.default_tail_messages),
        ("fleet.maxTailMessages", fleet.max_tail_messages),
        ("fleet.maxMessageTextChars", fleet.max_message_text_chars),
        ("fleet.maxSelectionsPerCaller", fleet.max_selections_per_caller),
        ("fleet.maxReplyRecordsPerCaller", fleet.max_reply_records_per_caller),
        ("fleet.maxReplyMessages", fleet.max_reply_messages),
        ("fleet.maxReplyTextChars", fleet.max_reply_text_chars),
    ] {
        count(errors, key, value.into());
    }
    for (key, value) in [
        ("fleet.targetRefTtl", fleet.target_ref_ttl),
        ("fleet.selectionTtl", fleet.selection_ttl),
        ("fleet.replyReceiptTtl", fleet.reply_receipt_ttl),
    ] {
        duration(errors, key, value);
    }
    if fleet.default_tail_messages > fleet.max_tail_messages {
        let message = format!(
            "{}: expected at most fleet.maxTailMessages, {}",
            fleet.default_tail_messages, fleet.max_tail_messages
        );
        errors.push(FieldPath::new("fleet.defaultTailMessages"), FieldValueInvalid, message);
    }
}

/// What a hook may be for.
const HOOK_EVENTS: [&str; 5] = [
    "spawn.pre_create",
    "spawn.created",
    "spawn.parent_stopped",
    "spawn.ttl_expired",
    "spawn.reaped",
];

fn hooks(errors: &mut FieldErrors, config: &Config) {
    for (index, hook) in config.hooks.iter().enumerate() {
        let at = FieldPath::new("hooks").index(index);
        if !HOOK_EVENTS.contains(&hook.event.as_str()) {
            let message = format!("{:?}: expected one of {}", hook.event, HOOK_EVENTS.join(", "));
            errors.push(at.field("event"), FieldValueInvalid, message);
        }
        command_line(errors, at.field("command"), &hook.command);
        if hook.timeout.is_zero() || hook.timeout.get() > HOOK_TIMEOUT_MAX {
            let message = format!("{}: expected above zero and at most 5m", hook.timeout);
            errors.push(at.field("timeout"), FieldValueInvalid, message);
        }
    }
    for (index, notify) in config.notify.iter().enumerate() {
        let at = FieldPath::new("notify").index(index);
        validate::line(errors, at.field("event"), &notify.event, ID_CHARS_MAX);
        if let Some(line) = &notify.exec {
            command_line(errors, at.field("exec"), line);
        }
        if let Some(url) = &notify.webhook {
            validate::http_url(errors, at.field("webhook"), url);
        }
        if notify.exec.is_none() && notify.webhook.is_none() {
            errors.push(at, FieldValueInvalid, "expected exec or webhook or both");
        }
    }
}

fn command_line(errors: &mut FieldErrors, at: FieldPath, line: &str) {
    if let Err(error) = command::split(line) {
        errors.push(at, FieldValueInvalid, error.to_string());
    }
}

fn count(errors: &mut FieldErrors, key: &str, value: u64) {
    count_up_to(errors, key, value, COUNT_MAX);
}

fn count_up_to(errors: &mut FieldErrors, key: &str, value: u64, max: u64) {
    if !(1..=max).contains(&value) {
        let message = format!("{value}: expected 1 to {max}");
        errors.push(FieldPath::new(key), FieldValueInvalid, message);
    }
}

fn size(errors: &mut FieldErrors, key: &str, value: Bytes, range: &RangeInclusive<Bytes>) {
    if !range.contains(&value) {
        let message = format!("{value}: expected {} to {}", range.start(), range.end());
        errors.push(FieldPath::new(key), FieldValueInvalid, message);
    }
}

fn duration(errors: &mut FieldErrors, key: &str, value: Dur) {
    if value.is_zero() || value.get() > DURATION_MAX {
        let message = format!("{value}: expected a duration above zero");
        errors.push(FieldPath::new(key), FieldValueInvalid, message);
    }
}
