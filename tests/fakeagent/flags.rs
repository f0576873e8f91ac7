//! What the process was told when it was started.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

pub(crate) const HELP: &str = "\
fakeagent: a scripted ACP agent for tests

USAGE: fakeagent [FLAGS]        speaks ACP on standard input and output

STAGE is one of: start initialize authenticate new load resume prompt set_mode set_option
set_model close cancel

  --script FILE            the same flags, one a line, without the dashes; # begins a comment
  --protocol N             answers `initialize` with this version (default 1)
  --name TEXT              agentInfo.name (default fakeagent)
  --cap LIST               of load resume close dirs http image audio embedded; or `all`; system
                           (systemPrompt) by name alone
  --delay STAGE=MS         waits before it answers
  --silent STAGE           never answers
  --exit STAGE=CODE        exits instead of answering
  --fail STAGE=CODE:TEXT   answers with this error
  --auth METHOD            `new` answers -32000 until `authenticate` came with METHOD
  --modes LIST             ids of modes; the first is the current one
  --models LIST            ids of models, the old way (`models`, session/set_model)
  --options                config options mode, model and fast; model `deep` adds effort
  --options-json JSON      config options as they are to be sent
  --tells-first            tells of an option's change before it answers the request for it
  --early-updates N        so many updates before the answer to `new`
  --state FILE             remembers sessions: one appended line for each and for each prompt
  --prompt-log FILE        one appended line for each prompt, written before anything is answered:
                           {\"session\",\"text\",\"bytes\",\"told\",\"system\",\"meta\",\"pid\"}
  --pid-log FILE           appends its process id, and so does each child of its own
  --on-cancel HOW          cancelled (default), end_turn, error, ignore, exit
  --on-eof HOW             exit (default), ignore
  --on-load HOW            replay (default), quiet
  --ignore-term            SIGTERM does nothing
  --escape STYLE           a child at the start, as the directive
  --deaf                   reads nothing after `initialize`
  --banner TEXT            a line of plain text on standard output at the start
  --stderr TEXT            a line on standard error at the start
  --each TEXT              directives before those of each prompt

DIRECTIVES in a prompt, done in order; a prompt without any is echoed
  [[say:TEXT]] [[think:TEXT]]           a chunk of the answer, of reasoning
  [[big:BYTES]] [[big:BYTES:CHUNK]]     a long answer, in chunks of 64 KiB
  [[updates:N]]                         so many tiny chunks `.`
  [[tool:TITLE:KIND:PATH]]              a tool call that begins and completes
  [[open-tool:TITLE]]                   one that only begins
  [[offer:KIND,KIND]]                   what the next requests for permission offer
  [[ask:KIND:PATH]]                     asks, waits, and says `permission: OPTION`
  [[ask-more:KIND:PATH]]                asks and does not wait
  [[fs:read:PATH]] [[fs:write:PATH:TEXT]]
                                        a file of the client's; says its text or `written`
  [[terminal:WORDS]]                    a terminal of the client's, to its end; says `CODE: OUTPUT`
  [[terminal-open:WORDS]]               one that is not waited for; says its id
  [[rpc:METHOD:JSON]]                   a request with these parameters and the session's id; says
                                        the result, or `error CODE: MESSAGE`
  [[request:METHOD]]                    a request of any other kind; says the error code
  [[sleep:MS]]                          waits; a cancel ends it
  [[never]]                             waits until it is cancelled
  [[on-cancel:HOW]]                     as the flag, for this turn
  [[stop:REASON]] [[error:CODE:TEXT]]   how the turn is to end
  [[count]] [[session]] [[config]]      how many prompts the session had; its id; its options
  [[env]] [[env:NAME]] [[fds]] [[cwd]] [[pid]] [[meta]]
  [[servers]]                           the MCP servers that it was told to use, as JSON
  [[run:WORDS]]                         runs a program; says its exit code and what it wrote
  [[attack:SIGNAL DATA OUTSIDE]]        tries what it must not do; says what came of each
  [[mcp:TOOL:JSON]]                     calls a tool of its server `spawnlet`; says the answer
  [[raw:LINE]] [[garbage:N]]            a line as it is; lines that are no JSON
  [[flood:BYTES]] [[stderr:BYTES]]      bytes without a newline; bytes on standard error
  [[update:JSON]] [[foreign]]           an update as it is; one for another session
  [[answer:ID]]                         an answer under this id
  [[twice]] [[late:N]] [[late:N:MS]]    the turn's answer twice; chunks after it
  [[escape:STYLE]]                      a child: plain setpgid setsid double scrub hold; storm is
                                        200 plain ones
  [[deaf]]                              reads nothing any more
  [[close-stdout]] [[stop-self]]        standard output is closed; SIGSTOP to itself
  [[exit:CODE]] [[crash]]               ends the process
";

/// Tells a process that was started again that SIGTERM is ignored already.
pub(crate) const TERM_IS_IGNORED: &str = "--term-is-ignored";

/// What happens at a stage instead of, or before, an answer.
#[derive(Default)]
pub(crate) struct Stage {
    pub(crate) delay: Duration,
    pub(crate) silent: bool,
    pub(crate) exit: Option<u8>,
    pub(crate) fail: Option<(i64, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnCancel {
    Cancelled,
    EndTurn,
    Error,
    Ignore,
    Exit,
}

impl OnCancel {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "cancelled" => Self::Cancelled,
            "end_turn" => Self::EndTurn,
            "error" => Self::Error,
            "ignore" => Self::Ignore,
            "exit" => Self::Exit,
            _ => return None,
        })
    }
}

pub(crate) struct Flags {
    pub(crate) protocol: u64,
    pub(crate) name: String,
    pub(crate) capabilities: Vec<String>,
    pub(crate) stages: HashMap<String, Stage>,
    pub(crate) auth: Option<String>,
    pub(crate) modes: Vec<String>,
    pub(crate) models: Vec<String>,
    pub(crate) options: Vec<Value>,
    pub(crate) tells_first: bool,
    pub(crate) early_updates: u64,
    pub(crate) state: Option<PathBuf>,
    pub(crate) prompt_log: Option<PathBuf>,
    pub(crate) pid_log: Option<PathBuf>,
    pub(crate) on_cancel: OnCancel,
    pub(crate) ignore_eof: bool,
    pub(crate) replay: bool,
    pub(crate) ignore_term: bool,
    pub(crate) escape: Option<String>,
    pub(crate) deaf: bool,
    pub(crate) banner: Option<String>,
    pub(crate) stderr: Option<String>,
    pub(crate) each: String,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            protocol: 1,
            name: "fakeagent".into(),
            capabilities: Vec::new(),
            stages: HashMap::new(),
            auth: None,
            modes: Vec::new(),
            models: Vec::new(),
            options: Vec::new(),
            tells_first: false,
            early_updates: 0,
            state: None,
            prompt_log: None,
            pid_log: None,
            on_cancel: OnCancel::Cancelled,
            ignore_eof: false,
            replay: true,
            ignore_term: false,
            escape: None,
            deaf: false,
            banner: None,
            stderr: None,
            each: String::new(),
        }
    }
}

pub(crate) fn parse(arguments: &[String]) -> Result<Flags, String> {
    let mut flags = Flags::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == TERM_IS_IGNORED {
            continue;
        }
        let flag = argument.strip_prefix("--").ok_or_else(|| format!("`{argument}` is no flag"))?;
        let (name, inline) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        let value = match inline {
            Some(value) => value,
            None if is_switch(name) => String::new(),
            None => arguments.next().cloned().ok_or_else(|| format!("--{name} wants a value"))?,
        };
        if name == "script" {
            read_script(&mut flags, &value)?;
        } else {
            take(&mut flags, name, &value)?;
        }
    }
    Ok(flags)
}

fn read_script(flags: &mut Flags, path: &str) -> Result<(), String> {
    let script = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    for line in script.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with('#') {
            let (name, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            take(flags, name, value.trim())?;
        }
    }
    Ok(())
}

fn is_switch(name: &str) -> bool {
    matches!(name, "options" | "ignore-term" | "deaf")
}

fn take(flags: &mut Flags, name: &str, value: &str) -> Result<(), String> {
    let wrong = || format!("--{name} cannot be `{value}`");
    match name {
        "protocol" => flags.protocol = value.parse().map_err(|_| wrong())?,
        "name" => flags.name = value.to_owned(),
        "cap" => flags.capabilities = list(value),
        "delay" | "silent" | "exit" | "fail" => return take_stage(flags, name, value),
        "auth" => flags.auth = Some(value.to_owned()),
        "modes" => flags.modes = list(value),
        "models" => flags.models = list(value),
        "options" => flags.options = crate::agent::default_options(),
        "options-json" => flags.options = serde_json::from_str(value).map_err(|_| wrong())?,
        "tells-first" => flags.tells_first = true,
        "early-updates" => flags.early_updates = value.parse().map_err(|_| wrong())?,
        "state" => flags.state = Some(value.into()),
        "prompt-log" => flags.prompt_log = Some(value.into()),
        "pid-log" => flags.pid_log = Some(value.into()),
        "on-cancel" => flags.on_cancel = OnCancel::parse(value).ok_or_else(wrong)?,
        "on-eof" => flags.ignore_eof = choice(value, "ignore", "exit").ok_or_else(wrong)?,
        "on-load" => flags.replay = choice(value, "replay", "quiet").ok_or_else(wrong)?,
        "escape" => flags.escape = Some(value.to_owned()),
        "ignore-term" => flags.ignore_term = true,
        "deaf" => flags.deaf = true,
        "banner" => flags.banner = Some(value.to_owned()),
        "stderr" => flags.stderr = Some(value.to_owned()),
        "each" => flags.each = value.to_owned(),
        _ => return Err(format!("there is no flag --{name}")),
    }
    Ok(())
}

fn take_stage(flags: &mut Flags, name: &str, value: &str) -> Result<(), String> {
    let wrong = || format!("--{name} cannot be `{value}`");
    let (stage, argument) = value.split_once('=').unwrap_or((value, "0"));
    const STAGES: &[&str] = &[
        "start",
        "initialize",
        "authenticate",
        "new",
        "load",
        "resume",
        "prompt",
        "set_mode",
        "set_option",
        "set_model",
        "close",
        "cancel",
    ];
    if !STAGES.contains(&stage) {
        return Err(wrong());
    }
    let stage = flags.stages.entry(stage.to_owned()).or_default();
    match name {
        "delay" => stage.delay = Duration::from_millis(argument.parse().map_err(|_| wrong())?),
        "silent" => stage.silent = true,
        "exit" => stage.exit = Some(argument.parse().map_err(|_| wrong())?),
        _ => {
            let (code, text) = argument.split_once(':').unwrap_or((argument, "it failed"));
            stage.fail = Some((code.parse().map_err(|_| wrong())?, text.to_owned()));
        }
    }
    Ok(())
}

fn list(text: &str) -> Vec<String> {
    text.split([',', ' ']).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn choice(value: &str, yes: &str, no: &str) -> Option<bool> {
    if value == yes { Some(true) } else { (value == no).then_some(false) }
}
